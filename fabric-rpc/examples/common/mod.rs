//! What the examples share: the two processes, the socket beside the fabric, and the rates.

use std::io;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// What this process does.
pub(crate) enum Role {
    Server { provider: String },
    Client { fabric: String, socket: String },
}

/// Parses the arguments.
pub(crate) fn role(program: &str) -> Role {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [] => Role::Server {
            provider: "shm".into(),
        },
        [flag, provider] if flag == "--provider" => Role::Server {
            provider: provider.clone(),
        },
        [flag, fabric, socket] if flag == "--client" => Role::Client {
            fabric: fabric.clone(),
            socket: socket.clone(),
        },
        other => {
            eprintln!("{program} takes --provider and its name, or nothing, not {other:?}");
            std::process::exit(2);
        }
    }
}

/// The client process.
pub(crate) struct Client(watch::Receiver<Option<bool>>);

/// Starts this program as the client.
pub(crate) fn start_client(fabric: &str, socket: &str) -> io::Result<Client> {
    let mut child: Child = Command::new(std::env::current_exe()?)
        .args(["--client", fabric, socket])
        .spawn()?;
    let (ended, client) = watch::channel(None);
    std::thread::spawn(move || {
        let succeeded = child.wait().is_ok_and(|status| status.success());
        let _ = ended.send(Some(succeeded));
    });
    Ok(Client(client))
}

impl Client {
    /// Waits until the client has ended.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut client = self.0.clone();
        async move {
            let _ = client.wait_for(Option::is_some).await;
        }
    }

    /// Waits until the client has ended, and fails if the client has failed.
    pub(crate) async fn wait(&mut self) -> Result<()> {
        match *self.0.wait_for(Option::is_some).await? {
            Some(true) => Ok(()),
            _ => Err("the client failed".into()),
        }
    }
}

/// The socket that the fabric replaces.
pub(crate) enum Socket {
    /// With its name in the abstract namespace, which vanishes with the process.
    Unix(UnixListener, String),
    Tcp(TcpListener),
}

impl Socket {
    pub(crate) async fn bind(provider: &str) -> io::Result<Self> {
        if provider != "shm" {
            return Ok(Self::Tcp(TcpListener::bind("127.0.0.1:0").await?));
        }
        let name = format!("fabric-rpc-example-{}", std::process::id());
        let listener = UnixListener::bind(format!("\0{name}"))?;
        Ok(Self::Unix(listener, name))
    }

    pub(crate) fn address(&self) -> String {
        match self {
            Self::Unix(_, name) => format!("unix:{name}"),
            Self::Tcp(listener) => listener.local_addr().expect("an address").to_string(),
        }
    }
}

/// How a client reaches the server.
#[derive(Clone)]
pub(crate) enum Link {
    Fabric(String),
    /// The name of the socket, with the zero byte of the abstract namespace.
    Unix(String),
    Tcp(String),
}

impl Link {
    pub(crate) fn socket(address: &str) -> Self {
        match address.strip_prefix("unix:") {
            Some(name) => Self::Unix(format!("\0{name}")),
            None => Self::Tcp(address.to_owned()),
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Fabric(address) if address.contains("shm") => "the fabric (shm)",
            Self::Fabric(_) => "the fabric (tcp)",
            Self::Unix(_) => "a Unix socket",
            Self::Tcp(_) => "TCP",
        }
    }
}

/// The rates of the fabric and of the socket, in turns, so that both have the same noise.
pub(crate) struct Rates {
    names: [String; 2],
    rates: [Vec<f64>; 2],
}

impl Rates {
    const TURNS: usize = 5;
    const TURN: Duration = Duration::from_millis(70);

    /// Measures a run, which gets the index of the link and returns what it has done in the time.
    pub(crate) async fn measure(
        links: &[Link; 2],
        run: impl AsyncFn(usize, Duration) -> Result<usize>,
    ) -> Result<Self> {
        let mut rates = [const { Vec::new() }; 2];
        for _ in 0..Self::TURNS {
            for (link, rates) in rates.iter_mut().enumerate() {
                let began = Instant::now();
                let count = run(link, Self::TURN).await?;
                rates.push(count as f64 / began.elapsed().as_secs_f64());
            }
        }
        let names = [0, 1].map(|link: usize| links[link].name().to_owned());
        Ok(Self { names, rates })
    }

    /// Prints the medians.
    pub(crate) fn print(mut self, what: &str, unit: &str, scale: f64) {
        let [fabric, socket] = self.rates.each_mut().map(|rates| {
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2] / scale
        });
        let [of_fabric, of_socket] = &self.names;
        println!(
            "{what}: {fabric:.0} {unit} over {of_fabric}, \
             {socket:.0} over {of_socket}: {:.2} times",
            fabric / socket
        );
    }
}
