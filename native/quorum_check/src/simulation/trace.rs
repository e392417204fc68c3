//! The trace of a history: its last lines as text, and a hash by which two runs of a seed are compared.

use crate::simulation::clock::{Real, SECOND};
use std::collections::VecDeque;

#[derive(Debug)]
pub struct Trace {
    hash: u64,
    lines: VecDeque<String>,
    most: usize,
    heartbeats: bool,
}

impl Trace {
    /// Keeps the last `most` lines. If `most` is 0, only the hash is computed, which is much cheaper. With
    /// `heartbeats`, heartbeats and timers have lines, too.
    pub fn new(most: usize, heartbeats: bool) -> Trace {
        Trace {
            hash: 0xcbf2_9ce4_8422_2325,
            lines: VecDeque::new(),
            most,
            heartbeats,
        }
    }

    /// Adds `words` to the hash, and a line to the text.
    pub fn note(&mut self, real: Real, words: &[u64], line: impl FnOnce() -> String) {
        self.mix(real as u64);
        words.iter().for_each(|word| self.mix(*word));
        if self.most > 0 {
            if self.lines.len() == self.most {
                self.lines.pop_front();
            }
            let (seconds, rest) = (real / SECOND, real % SECOND);
            let line = format!("{seconds:>4}.{rest:09}  {}", line());
            self.lines.push_back(line);
        }
    }

    /// As [`Trace::note`], for a heartbeat or a timer.
    pub fn note_heartbeat(&mut self, real: Real, words: &[u64], line: impl FnOnce() -> String) {
        let most = self.most;
        if !self.heartbeats {
            self.most = 0;
        }
        self.note(real, words, line);
        self.most = most;
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn mix(&mut self, word: u64) {
        self.hash = (self.hash ^ word)
            .wrapping_mul(0x0000_0100_0000_01b3)
            .rotate_left(23);
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn into_lines(self) -> Vec<String> {
        self.lines.into()
    }
}
