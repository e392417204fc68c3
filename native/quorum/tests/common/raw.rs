//! Frames encoded by hand, independently of the encoder, including invalid ones.

use quorum::frame::VERSION;

/// The bytes so far.
#[derive(Clone, Debug, Default)]
pub struct Raw(pub Vec<u8>);

impl Raw {
    /// A batch of an agent without a session, up to its operations.
    pub fn batch() -> Raw {
        // Version, kind, agent, no session, sequence number, stamp, clock.
        Raw(vec![VERSION, 0, 7, 0, 1, 0, 0])
    }

    /// An answer with `Done`, up to its replies.
    pub fn done() -> Raw {
        // Version, kind, status, agent, voter and generation of the session, sequence number, stamp, verdict.
        Raw(vec![VERSION, 1, 0, 0, 7, 8, 9, 1, 0, 0])
    }

    /// A batch of one operation, up to its fields.
    pub fn op(kind: u8) -> Raw {
        Raw::batch().number(1).byte(kind)
    }

    /// An answer of one reply, up to its fields.
    pub fn reply(kind: u8) -> Raw {
        Raw::done().number(1).byte(kind)
    }

    /// The digest and the revoked tokens of an answer: none.
    pub fn end(self) -> Raw {
        self.number(0).number(0)
    }

    /// An answer with `Mismatch`, up to the other agents.
    pub fn mismatch() -> Raw {
        Raw(vec![VERSION, 1, 0, 0, 7, 8, 9, 1, 0, 1, 0])
    }

    /// A batch of one `Assert`, up to its names.
    pub fn assert() -> Raw {
        Raw::op(2).assertion()
    }

    /// The fields of an `Assert`, up to its names.
    pub fn assertion(self) -> Raw {
        self.number(5).byte(0).number(0).byte(0)
    }

    /// A notice, up to its votes.
    pub fn notice() -> Raw {
        // Version, kind, clock, state; voter, generation, sequence number.
        Raw(vec![VERSION, 2, 0, 0]).number(8).number(1).number(2)
    }

    /// A byte: a flag or a kind.
    pub fn byte(mut self, byte: u8) -> Raw {
        self.0.push(byte);
        self
    }

    /// A number in its shortest form.
    pub fn number(mut self, mut number: u64) -> Raw {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.byte(number as u8)
    }

    /// A name of `length` equal bytes.
    pub fn name(mut self, length: usize, letter: u8) -> Raw {
        self = self.number(length as u64);
        self.0.extend(std::iter::repeat_n(letter, length));
        self
    }

    /// `count` names of two bytes, in ascending order.
    pub fn names(mut self, count: usize) -> Raw {
        self = self.number(count as u64);
        for place in 0..count as u16 {
            self.0.push(2);
            self.0.extend(place.to_be_bytes());
        }
        self
    }

    /// `count` tokens, in ascending order.
    pub fn tokens(self, count: usize) -> Raw {
        let counted = self.number(count as u64);
        (0..count as u64).fold(counted, Raw::number)
    }

    /// A list of `count` equal bytes.
    pub fn bytes(mut self, count: usize, byte: u8) -> Raw {
        self = self.number(count as u64);
        self.0.extend(std::iter::repeat_n(byte, count));
        self
    }

    /// A list of `count` equal elements.
    pub fn bytes_of(mut self, count: usize, element: &[u8]) -> Raw {
        self = self.number(count as u64);
        (0..count).for_each(|_| self.0.extend(element));
        self
    }
}
