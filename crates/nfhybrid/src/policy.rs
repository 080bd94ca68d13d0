//! Which data section a directory is mapped to, and what its fsync waits for.
//!
//! The paper keeps a map table from directories to sections (section 3.5). Here the rule stands on the
//! directory itself, as an extended attribute of the disk half: it moves with the directory, survives the loss
//! of the SSD and is one small operation to change, live. Everything below inherits the nearest rule above it.
//! A change moves no data and counts for what is written from then on.

use super::core::Core;
use super::node::Node;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_ext4::ROOT_INO;
use bimetal_vfs::Kind;

/// The attribute that holds a directory's section or `bypass`.
pub const SECTION_XATTR: &[u8] = b"trusted.bimetal.section";
/// The attribute that holds a directory's durability.
pub const DURABILITY_XATTR: &[u8] = b"trusted.bimetal.durability";
/// The rule that keeps data off the SSD.
pub const BYPASS: &str = "bypass";

/// What an fsync waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Durable on one half (the paper's): normally the SSD's log.
    #[default]
    Either,
    /// Durable on both.
    Both,
}

impl std::str::FromStr for Durability {
    type Err = Error;
    fn from_str(text: &str) -> Result<Durability> {
        match text {
            "either" => Ok(Durability::Either),
            "both" => Ok(Durability::Both),
            _ => Err(Error::invalid(format!("durability '{text}' is unknown; say either or both"))),
        }
    }
}

/// What holds for an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The data section, or none: the SSD is bypassed.
    pub section: Option<usize>,
    /// What an fsync waits for.
    pub durability: Durability,
}

/// Directories above an inode that are asked for rules.
const DEPTH_MAX: usize = 4096;

/// What a directory itself says.
#[derive(Default)]
struct Own {
    section: Option<Option<usize>>,
    durability: Option<Durability>,
}

/// The directories that say what holds for an inode; none where the default does.
#[derive(Clone, Copy, Debug, Default)]
pub struct RulesFrom {
    /// Which section, or bypass.
    pub section: Option<Ino>,
    /// What an fsync waits for.
    pub durability: Option<Ino>,
}

/// What holds where no directory says otherwise, and in which turn the rules are.
#[derive(Debug)]
pub struct Rules {
    default_durability: Durability,
    turn: u32,
}

impl Rules {
    /// What an fsync waits for where no directory says otherwise.
    pub fn new(default_durability: Durability) -> Rules {
        Rules { default_durability, turn: 0 }
    }

    /// What an fsync waits for where no directory says otherwise.
    pub fn default_durability(&self) -> Durability {
        self.default_durability
    }

    /// Rises when any directory's rules change; what was worked out in another turn no longer holds.
    pub fn turn(&self) -> u32 {
        self.turn
    }

    /// A directory's rules changed, or what it inherits, or the sections there are.
    pub fn changed(&mut self) {
        self.turn += 1;
    }
}

impl Core {
    /// The policy of an inode: its own rule if it is a directory that has one, else its parent's.
    ///
    /// Walks up only as far as the nearest inode whose policy is known; one hash lookup when that is its own.
    pub fn policy(&mut self, ino: Ino) -> Policy {
        let turn = self.rules.turn();
        let mut chain = Vec::new();
        let mut at = ino;
        let mut policy = loop {
            if let Some(policy) = self.nodes.get(at).and_then(|node| node.policy(turn)) {
                break policy;
            }
            chain.push(at);
            match self.parent_of(at) {
                Some(parent) if chain.len() < DEPTH_MAX => at = parent,
                _ => break self.default_policy(),
            }
        };
        while let Some(ino) = chain.pop() {
            policy = self.with_own_rules(ino, policy);
            if self.ext4.has_missed() {
                // Not all rules are in memory: this is not to be remembered.
                return policy;
            }
            self.node_of(ino).set_policy(turn, policy);
        }
        policy
    }

    fn parent_of(&mut self, ino: Ino) -> Option<Ino> {
        if ino == ROOT_INO {
            return None;
        }
        let known = self.nodes.get(ino).map(Node::parent).filter(|parent| parent.0 != 0);
        known.or_else(|| self.ext4.lookup(ino, b"..").ok().flatten().map(|(parent, _)| parent))
    }

    fn default_policy(&self) -> Policy {
        let section = self.ssd.as_ref().map(|ssd| ssd.default_section());
        Policy { section, durability: self.rules.default_durability() }
    }

    fn with_own_rules(&mut self, ino: Ino, policy: Policy) -> Policy {
        let own = self.own_rules(ino);
        Policy {
            section: own.section.unwrap_or(policy.section),
            durability: own.durability.unwrap_or(policy.durability),
        }
    }

    /// What a directory itself says; a section that there is not is no rule.
    fn own_rules(&mut self, ino: Ino) -> Own {
        let mut own = Own::default();
        if !self.ext4.inode(ino).is_ok_and(|inode| inode.kind() == Kind::Dir && inode.may_have_xattrs()) {
            return own;
        }
        if let Ok(rule) = self.ext4.get_xattr(ino, SECTION_XATTR) {
            own.section = match (std::str::from_utf8(&rule), &self.ssd) {
                (Ok(BYPASS), _) | (_, None) => Some(None),
                (Ok(name), Some(ssd)) => ssd.section_named(name).map(Some),
                (Err(_), _) => None,
            };
        }
        if let Ok(rule) = self.ext4.get_xattr(ino, DURABILITY_XATTR) {
            own.durability = std::str::from_utf8(&rule).ok().and_then(|text| text.parse().ok());
        }
        own
    }

    /// The directories whose rules hold for an inode. Walks up to the root, as far as both are known.
    pub fn rules_from(&mut self, ino: Ino) -> RulesFrom {
        let mut from = RulesFrom::default();
        let mut at = Some(ino);
        for _ in 0..DEPTH_MAX {
            let Some(dir) = at.filter(|_| from.section.is_none() || from.durability.is_none()) else { break };
            let own = self.own_rules(dir);
            from.section = from.section.or(own.section.map(|_| dir));
            from.durability = from.durability.or(own.durability.map(|_| dir));
            at = self.parent_of(dir);
        }
        from
    }
}
