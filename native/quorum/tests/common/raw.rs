//! Frames written by hand, as the table of the format says, and not by the encoder: also such as it never writes.

/// The bytes so far.
#[derive(Clone, Debug, Default)]
pub struct Raw(pub Vec<u8>);

impl Raw {
    /// A batch of an agent that is not known yet, up to its operations.
    pub fn batch() -> Raw {
        Raw(vec![1, 0])
            .number(0)
            .number(7)
            .byte(0)
            .number(1)
            .number(0)
    }

    /// An answer that is done, up to its replies.
    pub fn done() -> Raw {
        Raw(vec![1, 1])
            .number(0)
            .number(7)
            .number(8)
            .number(9)
            .number(1)
            .number(0)
            .byte(0)
    }

    /// A notice, up to its hints.
    pub fn notice() -> Raw {
        Raw(vec![1, 2]).number(0).number(8)
    }

    /// A told floor, up to its fence.
    pub fn told() -> Raw {
        Raw(vec![1, 3, 1]).number(0).number(8)
    }

    /// That the fences are lost, up to the origin.
    pub fn lost() -> Raw {
        Raw(vec![1, 3, 2]).number(0).number(8)
    }

    /// A byte: a flag, a kind.
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

    /// A name of that length, of one letter.
    pub fn name(mut self, length: usize, letter: u8) -> Raw {
        self = self.number(length as u64);
        self.0.extend(std::iter::repeat_n(letter, length));
        self
    }

    /// That many names of two bytes, in order.
    pub fn names(mut self, count: usize) -> Raw {
        self = self.number(count as u64);
        for place in 0..count as u16 {
            self.0.push(2);
            self.0.extend(place.to_be_bytes());
        }
        self
    }

    /// That many tokens, in order.
    pub fn tokens(self, count: usize) -> Raw {
        let counted = self.number(count as u64);
        (0..count as u64).fold(counted, Raw::number)
    }

    /// The count, and that many times the same byte.
    pub fn bytes(mut self, count: usize, byte: u8) -> Raw {
        self = self.number(count as u64);
        self.0.extend(std::iter::repeat_n(byte, count));
        self
    }
}
