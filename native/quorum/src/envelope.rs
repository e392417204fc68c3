//! What nodes send each other: frames and messages about views, with the view of the sender.

use crate::message::Frame;
use crate::view::{NodeName, Role, ViewId};
use crate::view_message::ViewMessage;

/// What nodes send each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Content {
    /// Between agents and voters of one view.
    Frame(Frame),
    /// About views.
    View(ViewMessage),
}

/// A message from node to node, with the view of its sender.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Envelope {
    /// The view of the sender.
    pub view: ViewId,
    /// The rest.
    pub content: Content,
}

/// A message and its receiver.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Post {
    /// The receiving node.
    pub to: NodeName,
    /// Its machine.
    pub role: Role,
    /// The message.
    pub envelope: Envelope,
}
