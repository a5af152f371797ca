//! The object tree: the class, the parent and the number of children of every object.
//!
//! An [`ObjectNode`] counts its open children by class, and cannot be closed while a count is above
//! 0. A child is counted from [`ObjectNode::attach_to_parent`], the last step of its creation,
//! until it is closed or dropped. Clones of a handle are not children. A [`DependencyGuard`] keeps
//! an object open for a user that is not its child.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::error::{Error, Result};

/// The class of an object in the tree (`enum fi_fid_class`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[doc(alias = "fid")]
pub enum Class {
    /// A fabric.
    Fabric,
    /// A domain.
    Domain,
    /// An active endpoint.
    Endpoint,
    /// A completion queue.
    CompletionQueue,
    /// An event queue.
    EventQueue,
    /// An address vector.
    AddressVector,
    /// A memory region.
    MemoryRegion,
    /// A counter.
    Counter,
    /// A shared receive context.
    SharedReceive,
    /// A passive endpoint.
    #[doc(alias = "fid_pep")]
    PassiveEndpoint,
    /// A resource domain.
    ResourceDomain,
}

impl Class {
    /// Every class, in the order of declaration.
    pub const ALL: [Self; 11] = [
        Self::Fabric,
        Self::Domain,
        Self::Endpoint,
        Self::CompletionQueue,
        Self::EventQueue,
        Self::AddressVector,
        Self::MemoryRegion,
        Self::Counter,
        Self::SharedReceive,
        Self::PassiveEndpoint,
        Self::ResourceDomain,
    ];
}

impl Class {
    /// Returns the name of the class in the plural.
    const fn plural(self) -> &'static str {
        match self {
            Self::Fabric => "fabrics",
            Self::Domain => "domains",
            Self::Endpoint => "endpoints",
            Self::CompletionQueue => "completion queues",
            Self::EventQueue => "event queues",
            Self::AddressVector => "address vectors",
            Self::MemoryRegion => "memory regions",
            Self::Counter => "counters",
            Self::SharedReceive => "shared receive contexts",
            Self::PassiveEndpoint => "passive endpoints",
            Self::ResourceDomain => "resource domains",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = self.plural();
        f.write_str(&plural[..plural.len() - 1])
    }
}

/// The number of children and users of each class that an object has. A *user* holds a
/// [`DependencyGuard`].
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Children([u32; Class::ALL.len()]);

impl Children {
    /// Returns the number of children and users of this class.
    #[must_use]
    pub fn of(&self, class: Class) -> u32 {
        self.0[class as usize]
    }

    /// Returns the number of children and users of all classes together.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.0.iter().sum()
    }
}

impl fmt::Debug for Children {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{self}]")
    }
}

impl fmt::Display for Children {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for class in Class::ALL {
            let count = self.of(class);
            if count > 0 {
                match count {
                    1 => write!(f, "{separator}1 {class}")?,
                    _ => write!(f, "{separator}{count} {}", class.plural())?,
                }
                separator = ", ";
            }
        }
        if separator.is_empty() {
            f.write_str("nothing")
        } else {
            Ok(())
        }
    }
}

/// The highest numbers of children that an object and its
/// [resource domains](ObjectNode::resource_domain) may have together, by class.
#[derive(Clone, Copy, Debug)]
pub struct ChildLimits([usize; Class::ALL.len()]);

/// The limits of an object, and the number of children of the object and its resource
/// domains.
#[derive(Debug)]
struct LimitedChildren {
    limits: ChildLimits,
    counts: [AtomicU32; Class::ALL.len()],
}

impl LimitedChildren {
    /// Counts a child.
    fn add(&self, class: Class) -> Result<()> {
        let before = self.counts[class as usize].fetch_add(1, Ordering::SeqCst);
        self.limits.check(class, before as usize + 1)
    }

    fn remove(&self, class: Class) {
        self.counts[class as usize].fetch_sub(1, Ordering::SeqCst);
    }

    /// Checks that there may be another child.
    fn check_room(&self, class: Class) -> Result<()> {
        let count = self.counts[class as usize].load(Ordering::SeqCst);
        self.limits.check(class, count as usize + 1)
    }
}

impl ChildLimits {
    /// Any number of children of each class.
    pub const NONE: Self = Self([usize::MAX; Class::ALL.len()]);

    /// Sets the limit of a class.
    #[must_use]
    pub fn with(mut self, class: Class, limit: usize) -> Self {
        self.0[class as usize] = limit;
        self
    }

    /// Checks a number of children of a class.
    fn check(&self, class: Class, count: usize) -> Result<()> {
        let limit = self.0[class as usize];
        if count <= limit {
            return Ok(());
        }
        let what = class.plural();
        Err(Error::TooMany { what, count, limit })
    }
}

/// One object of the tree, shared by all handles of the object.
#[derive(Debug)]
pub struct ObjectNode {
    class: Class,
    id: u64,
    parent: Option<Arc<ObjectNode>>,
    /// The number of children and users of each class, at the index of the class in
    /// [`Class::ALL`].
    children: [AtomicU32; Class::ALL.len()],
    /// `None` for any number of children.
    limited: Option<Arc<LimitedChildren>>,
    /// Whether the parent counts this object.
    attached: AtomicBool,
    closed: AtomicBool,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl ObjectNode {
    /// Creates the node of an object with this parent. The parent does not count the object before
    /// [`ObjectNode::attach_to_parent`].
    #[must_use]
    pub fn new(class: Class, parent: Option<Arc<ObjectNode>>) -> Arc<Self> {
        Self::open(class, parent, None)
    }

    /// As [`new`](Self::new), for an object with limits of its children.
    #[must_use]
    pub fn with_limits(
        class: Class,
        parent: Option<Arc<ObjectNode>>,
        limits: ChildLimits,
    ) -> Arc<Self> {
        let counts = Default::default();
        Self::open(
            class,
            parent,
            Some(Arc::new(LimitedChildren { limits, counts })),
        )
    }

    /// Creates the object of a resource domain of this domain: the limits of the domain apply to
    /// the children of both together.
    #[must_use]
    pub fn resource_domain(domain: &Arc<ObjectNode>) -> Arc<Self> {
        Self::open(
            Class::ResourceDomain,
            Some(domain.clone()),
            domain.limited.clone(),
        )
    }

    fn open(
        class: Class,
        parent: Option<Arc<ObjectNode>>,
        limited: Option<Arc<LimitedChildren>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            class,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            parent,
            children: Default::default(),
            limited,
            attached: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }

    /// Counts this object as a child of its parent. Idempotent.
    ///
    /// The last step of the creation of an object, so that a failed creation leaves no count.
    ///
    /// # Errors
    /// [`Error::Closed`] when the parent is closed; [`Error::TooMany`] when the parent has as many
    /// children of this class as it may have.
    pub fn attach_to_parent(&self) -> Result<()> {
        if let Some(parent) = &self.parent
            && !self.attached.swap(true, Ordering::AcqRel)
        {
            parent.children[self.class as usize].fetch_add(1, Ordering::SeqCst);
            let limited = parent.limited.as_ref();
            let has_room = limited.map_or(Ok(()), |limited| limited.add(self.class));
            // SYNC: pairs with `close`: either `close` sees the count, or this load sees `closed`.
            let checked = parent.check_open().and(has_room);
            if checked.is_err() {
                self.detach_from_parent();
            }
            return checked;
        }
        Ok(())
    }

    /// Checks, before the creation of a child, that the object is open and may have another child
    /// of this class. [`attach_to_parent`](Self::attach_to_parent) decides.
    ///
    /// # Errors
    /// As [`attach_to_parent`](Self::attach_to_parent).
    pub fn check_room(&self, class: Class) -> Result<()> {
        self.check_open()?;
        let limited = self.limited.as_ref();
        limited.map_or(Ok(()), |limited| limited.check_room(class))
    }

    /// Closes the object and detaches it from its parent. A closed object accepts no children.
    ///
    /// # Errors
    /// [`Error::Busy`], with the number of children and users by class, while there are any: the
    /// object stays open. [`Error::Closed`] when the object was closed before.
    pub fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::SeqCst) {
            return Err(Error::Closed(self.class));
        }
        let children = self.children();
        if children.total() > 0 {
            self.closed.store(false, Ordering::SeqCst);
            return Err(Error::Busy(children));
        }
        self.detach_from_parent();
        Ok(())
    }

    /// Ends the count of this object in its parent. Idempotent. Called when the last handle is
    /// dropped without a close.
    pub fn detach_from_parent(&self) {
        if let Some(parent) = &self.parent
            && self.attached.swap(false, Ordering::AcqRel)
        {
            parent.children[self.class as usize].fetch_sub(1, Ordering::SeqCst);
            if let Some(limited) = &parent.limited {
                limited.remove(self.class);
            }
        }
    }

    /// Checks that the object is open.
    ///
    /// # Errors
    /// [`Error::Closed`] when the object is closed.
    pub fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) {
            Err(Error::Closed(self.class))
        } else {
            Ok(())
        }
    }

    /// Returns the class of the object.
    #[must_use]
    pub fn class(&self) -> Class {
        self.class
    }

    /// Returns the object's id, which is unique in this process.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the parent; `None` for a fabric.
    #[must_use]
    pub fn parent(&self) -> Option<&Arc<ObjectNode>> {
        self.parent.as_ref()
    }

    /// Returns the number of open children and of users by class.
    #[must_use]
    pub fn children(&self) -> Children {
        Children(std::array::from_fn(|i| {
            self.children[i].load(Ordering::SeqCst)
        }))
    }
}

/// A guard that keeps an object open for a user of the object that is not its child, such as an
/// endpoint that uses a completion queue. The drop of the guard ends the use.
#[derive(Debug)]
pub struct DependencyGuard {
    /// The object that is used.
    node: Arc<ObjectNode>,
    /// The class of the user.
    user_class: Class,
}

impl DependencyGuard {
    /// Keeps `node` open for a user of class `user_class`.
    ///
    /// # Errors
    /// [`Error::Closed`] when the object of `node` is closed.
    pub fn new(node: &Arc<ObjectNode>, user_class: Class) -> Result<Self> {
        node.children[user_class as usize].fetch_add(1, Ordering::SeqCst);
        let guard = Self {
            node: node.clone(),
            user_class,
        };
        // SYNC: pairs with `ObjectNode::close`, as in `ObjectNode::attach_to_parent`.
        node.check_open().map(|()| guard)
    }
}

impl Drop for DependencyGuard {
    fn drop(&mut self) {
        self.node.children[self.user_class as usize].fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_beyond_a_limit_are_refused() {
        let limits = ChildLimits::NONE.with(Class::Counter, 2);
        let domain = ObjectNode::with_limits(Class::Domain, None, limits);
        let child = |class| {
            let node = ObjectNode::new(class, Some(domain.clone()));
            node.attach_to_parent().map(|()| node)
        };
        let counters = [(); 2].map(|()| child(Class::Counter).unwrap());
        for refused in [
            child(Class::Counter).map(drop),
            domain.check_room(Class::Counter),
        ] {
            assert_eq!(
                refused.unwrap_err().to_string(),
                "3 counters exceed the limit of 2"
            );
        }
        assert!(child(Class::Endpoint).is_ok());
        counters[0].close().unwrap();
        assert_eq!(domain.children().of(Class::Counter), 1);
        domain.check_room(Class::Counter).unwrap();
        assert!(child(Class::Counter).is_ok());
    }

    #[test]
    fn limits_apply_to_an_object_and_its_parts_together() {
        let limits = ChildLimits::NONE.with(Class::Endpoint, 2);
        let domain = ObjectNode::with_limits(Class::Domain, None, limits);
        let part = ObjectNode::resource_domain(&domain);
        part.attach_to_parent().unwrap();
        let child = |parent: &Arc<ObjectNode>| {
            let node = ObjectNode::new(Class::Endpoint, Some(parent.clone()));
            node.attach_to_parent().map(|()| node)
        };
        let (first, _second) = (child(&domain).unwrap(), child(&part).unwrap());
        assert!(child(&domain).is_err() && child(&part).is_err());
        assert!(part.check_room(Class::Endpoint).is_err());
        first.close().unwrap();
        let third = child(&part).unwrap();
        assert_eq!(part.children().of(Class::Endpoint), 2);
        let children = domain.children();
        assert_eq!(children.to_string(), "1 resource domain");
        third.close().unwrap();
        assert!(child(&domain).is_ok());
    }

    #[test]
    fn close_of_object_with_children_fails_and_counts_them() {
        let domain = ObjectNode::new(Class::Domain, None);
        let queues: Vec<_> = (0..2)
            .map(|_| ObjectNode::new(Class::CompletionQueue, Some(domain.clone())))
            .collect();
        assert_eq!(
            domain.children().total(),
            0,
            "a child is not counted before attach_to_parent"
        );
        for queue in &queues {
            queue.attach_to_parent().unwrap();
        }
        let error = domain.close().unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot close (FI_EBUSY): still open: 2 completion queues"
        );
        assert!(
            domain.check_open().is_ok(),
            "a failed close leaves the object open"
        );
        queues[0].close().unwrap();
        queues[1].detach_from_parent();
        queues[1].detach_from_parent();
        domain.close().unwrap();
        assert_eq!(domain.close(), Err(Error::Closed(Class::Domain)));
    }

    #[test]
    fn dependency_guard_keeps_object_open() {
        let queue = ObjectNode::new(Class::CompletionQueue, None);
        let guard = DependencyGuard::new(&queue, Class::Endpoint).unwrap();
        assert_eq!(
            queue.close().unwrap_err().to_string(),
            "cannot close (FI_EBUSY): still open: 1 endpoint"
        );
        drop(guard);
        queue.close().unwrap();
        assert!(DependencyGuard::new(&queue, Class::Endpoint).is_err());
        assert_eq!(queue.children().total(), 0);
    }

    #[test]
    fn closed_parent_accepts_no_child() {
        let domain = ObjectNode::new(Class::Domain, None);
        let child = ObjectNode::new(Class::Counter, Some(domain.clone()));
        domain.close().unwrap();
        assert_eq!(child.attach_to_parent(), Err(Error::Closed(Class::Domain)));
        assert_eq!(domain.children().total(), 0);
    }
}
