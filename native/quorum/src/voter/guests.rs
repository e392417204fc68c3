//! What the state file says of *guests*: agents of no member that may have votes here.
//!
//! A restarted voter ends its quarantine early when all agents that may count on votes of its earlier lives have
//! settled. The member list says which members these are. Of clients, the file says only whether there may be any. Then
//! the quarantine takes its full time.
//!
//! ```text
//!         first vote for a client          stored: it gets the vote
//!   none -------------------------> storing -----------------------> some
//!     '<--------------------------------------------------------------'
//!          no client has had a vote for a lease, and the voter votes
//! ```

use crate::time::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Said {
    None,
    Storing,
    Some,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Guests {
    said: Said,
    /// When to look whether clients have votes. `None` if the file says that there are no guests, or without a file.
    look: Option<Time>,
    /// Whether no client has had a vote since the last look.
    is_idle: bool,
}

impl Guests {
    /// What an earlier life has stored.
    pub(super) fn new(said: bool, now: Time) -> Guests {
        Guests {
            said: if said { Said::Some } else { Said::None },
            look: said.then_some(now),
            is_idle: false,
        }
    }

    /// For a voter without a file: the next life expects guests anyway.
    pub(super) fn without_file() -> Guests {
        Guests {
            said: Said::Some,
            look: None,
            is_idle: false,
        }
    }

    /// Whether a client may have votes.
    pub(super) fn are_stored(&self) -> bool {
        self.said == Said::Some
    }

    /// A client wants its first vote. Returns whether this must be stored.
    pub(super) fn begin(&mut self) -> bool {
        let begins = self.said == Said::None;
        self.said = if begins { Said::Storing } else { self.said };
        begins
    }

    /// The file says that there may be guests. `look`: see [`Guests::looked`].
    pub(super) fn stored(&mut self, look: Time) {
        if self.said == Said::Storing {
            (self.said, self.look, self.is_idle) = (Said::Some, Some(look), false);
        }
    }

    /// A client has got a vote.
    pub(super) fn voted(&mut self) {
        self.is_idle = false;
    }

    /// When to call [`Guests::looked`], while the voter votes.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.look
    }

    /// Whether clients have votes now. `next` is a lease later. Returns whether none has had one since the last look,
    /// so that the file may say that there are no guests.
    pub(super) fn looked(&mut self, have_votes: bool, next: Time) -> bool {
        let ends = self.is_idle && !have_votes;
        if ends {
            (self.said, self.look) = (Said::None, None);
        } else {
            (self.look, self.is_idle) = (Some(next), !have_votes);
        }
        ends
    }

    #[cfg(feature = "model")]
    pub(super) fn rebase(&mut self, now: Time) {
        self.look = self.look.map(|look| look.relative_to(now));
    }
}
