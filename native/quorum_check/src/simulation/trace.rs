//! What happened, for people (the last lines before a violation) and for machines (a hash by which two runs of a seed
//! are known to be the same).

use super::clock::{Real, SECOND};
use quorum::message::{Ack, Batch, Floor, Frame, Op, Reply, Turn, Verdict};
use std::collections::VecDeque;
use std::fmt::Write;

/// Records a history.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    lines: VecDeque<String>,
    most: usize,
    dull: bool,
}

impl Trace {
    /// Keeps the last `most` lines; with none, only the hash, which is much cheaper. `dull`: also of what says
    /// little.
    #[must_use]
    pub fn new(most: usize, dull: bool) -> Trace {
        Trace {
            hash: 0xcbf2_9ce4_8422_2325,
            lines: VecDeque::new(),
            most,
            dull,
        }
    }

    /// Something happened. `words` are what is hashed, `line` what is told.
    pub fn note(&mut self, real: Real, words: &[u64], line: impl FnOnce() -> String) {
        self.mix_all(real, words);
        if self.most > 0 {
            if self.lines.len() == self.most {
                self.lines.pop_front();
            }
            self.lines.push_back(format!(
                "{:>4}.{:09}  {}",
                real / SECOND,
                real % SECOND,
                line()
            ));
        }
    }

    /// Something happened that says little.
    pub fn note_dull(&mut self, real: Real, words: &[u64], line: impl FnOnce() -> String) {
        if self.dull {
            self.note(real, words, line);
        } else {
            self.mix_all(real, words);
        }
    }

    /// Bytes that were sent.
    pub fn bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn mix_all(&mut self, real: Real, words: &[u64]) {
        self.mix(real as u64);
        for word in words {
            self.mix(*word);
        }
    }

    fn mix(&mut self, word: u64) {
        self.hash = (self.hash ^ word)
            .wrapping_mul(0x0000_0100_0000_01b3)
            .rotate_left(23);
    }

    /// Of all that was noted so far.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The last lines.
    #[must_use]
    pub fn lines(self) -> Vec<String> {
        self.lines.into()
    }
}

/// Whether a frame is a heartbeat, or the answer to one: most are, and say little.
#[must_use]
pub fn is_dull(frame: &Frame) -> bool {
    match frame {
        Frame::Batch(batch) => batch.ops.is_empty(),
        Frame::Ack(Ack {
            verdict: Verdict::Done {
                replies, revoked, ..
            },
            ..
        }) => replies.is_empty() && revoked.is_empty(),
        _ => false,
    }
}

/// A frame in a line: what matters of it, without the names of fields.
#[must_use]
pub fn describe(frame: &Frame) -> String {
    let mut line = String::new();
    let told = match frame {
        Frame::Batch(batch) => describe_batch(&mut line, batch),
        Frame::Ack(ack) => {
            let (voter, generation) = (ack.session.voter.0, ack.session.generation.0);
            let _ = write!(
                line,
                "ack {} of a{} in v{voter}.{generation}:",
                ack.seq, ack.agent.0
            );
            match &ack.verdict {
                Verdict::Done {
                    replies, revoked, ..
                } => {
                    for reply in replies {
                        let _ = match reply {
                            Reply::Yes { fence } => write!(line, " yes({})", fence.0),
                            Reply::No { reason } => write!(line, " no({reason:?})"),
                            Reply::Confirmed => write!(line, " confirmed"),
                            Reply::Missing => write!(line, " missing"),
                            Reply::Synced { missing } => write!(line, " synced{missing:?}"),
                        };
                    }
                    let tokens: Vec<u64> = revoked.iter().map(|token| token.0).collect();
                    if tokens.is_empty() {
                        Ok(())
                    } else {
                        write!(line, " revoked {tokens:?}")
                    }
                }
                other => write!(line, " {other:?}"),
            }
        }
        Frame::Notice(notice) => {
            let speak = if notice.speak { " speak" } else { "" };
            write!(
                line,
                "notice of v{} {:?}{speak}",
                notice.voter.0, notice.hints
            )
        }
        Frame::Floor(Floor::Ask { asker, .. }) => write!(line, "floor? of v{}", asker.0),
        Frame::Floor(Floor::Told { asker, fence, .. }) => {
            write!(line, "floor {} for v{}", fence.0, asker.0)
        }
        Frame::Floor(Floor::Lost { asker, origin, .. }) => {
            write!(line, "no floor, origin {}, for v{}", origin.0, asker.0)
        }
    };
    let _ = told;
    line
}

fn describe_batch(line: &mut String, batch: &Batch) -> std::fmt::Result {
    write!(line, "batch {} of a{}", batch.seq, batch.agent.0)?;
    if let Some(session) = batch.session {
        write!(line, " in v{}.{}", session.voter.0, session.generation.0)?;
    }
    write!(line, ":")?;
    for op in &batch.ops {
        match op {
            Op::Lock {
                token,
                mode,
                turn,
                guess,
                run,
                names,
            } => {
                let turn = match turn {
                    Turn::Unknown => "",
                    Turn::Earlier => " in turn",
                    Turn::Nobody => " whose turn it is",
                };
                write!(
                    line,
                    " lock(t{} {mode:?} {names:?} guess {} run {run}{turn})",
                    token.0, guess.0
                )?;
            }
            Op::Confirm { token, fence } => write!(line, " confirm(t{} {})", token.0, fence.0)?,
            Op::Assert {
                token,
                mode,
                fence,
                names,
            } => {
                write!(line, " assert(t{} {mode:?} {names:?} {})", token.0, fence.0)?;
            }
            Op::Unlock { token, fence } => write!(line, " unlock(t{} {})", token.0, fence.0)?,
            Op::Leave { names } => write!(line, " leave({names:?})")?,
            Op::Sync { from, to, live } => {
                let live: Vec<u64> = live.iter().map(|token| token.0).collect();
                write!(line, " sync(t{}..t{} live {live:?})", from.0, to.0)?;
            }
            Op::Settled => write!(line, " settled")?,
            Op::Revoke { name } => write!(line, " revoke({name:?})")?,
        }
    }
    Ok(())
}
