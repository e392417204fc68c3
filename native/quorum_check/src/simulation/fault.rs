//! The kinds of faults.

macro_rules! faults {
    ($($(#[$doc:meta])* $fault:ident: $label:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Fault {
            $($(#[$doc])* $fault,)*
        }

        impl Fault {
            pub const ALL: &'static [Fault] = &[$(Fault::$fault),*];

            pub fn label(self) -> &'static str {
                match self {
                    $(Fault::$fault => concat!("fault: ", $label),)*
                }
            }
        }
    };
}

faults! {
    VoterCrash: "a voter crashes",
    /// It reaches other nodes than before. So the agents that it reached may not learn of the restart.
    VoterMoves: "a voter restarts elsewhere in the network",
    /// With the clients that use it.
    AgentCrash: "an agent crashes",
    NodeCrash: "a node crashes",
    /// At the same time, or one shortly after the other.
    VotersCrash: "several voters crash",
    AllCrash: "all nodes crash",
    /// The voter finds the file of an earlier life: a backup, or a disk that was not used for some time.
    OldDisk: "a voter restarts with an old disk",
    /// A guest, with its clients.
    GuestLeaves: "a guest leaves and does not return",
    /// The node stops and later continues as if nothing had happened: SIGSTOP, or a system that is suspended.
    NodePause: "a node pauses",
    AgentPause: "an agent pauses",
    VoterPause: "a voter pauses",
    CutOneWay: "a link is cut in one direction",
    CutBothWays: "a link is cut in both directions",
    /// Some nodes are cut off from the others.
    Partition: "partition",
    /// One node is cut off from all others.
    Isolation: "isolation",
    /// A long message is on a link before all others.
    Stall: "a link stalls",
    /// An agent is informed that a link is down and up again, and the link was up all the time.
    Flap: "a link flaps",
    /// A link loses or holds back many frames.
    BadLink: "a bad link",
    /// Clocks change their rate, or jump in the harmless direction.
    Clock: "a clock changes",
}

impl Fault {
    /// Whether it concerns a voter only, and no guest.
    pub fn is_of_voter(self) -> bool {
        use Fault::*;
        [VoterCrash, VoterMoves, VoterPause, OldDisk].contains(&self)
    }
}
