//! The client's half of the handshake, sans-IO: what the server says in, what to answer and at last
//! the export out.
//!
//! ```text
//! greeting -> structured replies? -> base:allocation? -> GO -> ready
//! ```
//!
//! Invariants: the first two options may be refused, GO may not; no more than [`MAX_PAYLOAD`] of a
//! reply is held; `step` consumes whole items only.

use super::wire::{self, ExportInfo, Reader, info, option, put_option, put_string, rep};
use super::{ClientError, MAX_REQUEST_BYTES};

/// The longest option reply that is accepted: a name, and an error's text, are at most 4096 bytes.
const MAX_PAYLOAD: u32 = 4096 + 512;
/// Replies to one option; a server that goes on for ever is left.
const MAX_REPLIES: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greeting,
    Structured,
    Context,
    Go,
    Ended,
}

pub(super) struct Hello {
    name: String,
    state: State,
    replies: u32,
    export: ExportInfo,
    told: bool,
}

/// What to do after a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Something was consumed; look at the rest.
    Again,
    /// Send the output and wait for more.
    More,
    /// Transmission begins.
    Ready(ExportInfo),
}

impl Hello {
    /// `name` is at most 4096 bytes.
    pub(super) fn new(name: &str) -> Hello {
        Hello {
            name: name.to_owned(),
            state: State::Greeting,
            replies: 0,
            told: false,
            export: ExportInfo {
                size_bytes: 0,
                flags: 0,
                minimum_bytes: 1,
                preferred_bytes: 4096,
                maximum_bytes: MAX_REQUEST_BYTES,
                structured: false,
                allocation: false,
            },
        }
    }

    pub(super) fn step(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Progress), ClientError> {
        match self.state {
            State::Greeting => self.greeting(input, out),
            State::Ended => Ok((0, Progress::More)),
            _ => self.reply(input, out),
        }
    }

    fn greeting(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Progress), ClientError> {
        let mut reader = Reader(input);
        let (Some(magic), Some(style), Some(flags)) = (reader.u64(), reader.u64(), reader.u16())
        else {
            return Ok((0, Progress::More));
        };
        if magic != wire::NBD_MAGIC {
            return Err(ClientError::Protocol);
        }
        if style != wire::OPTION_MAGIC || flags & wire::FIXED_NEWSTYLE == 0 {
            return Err(ClientError::TooOld);
        }
        let ours = flags & (wire::FIXED_NEWSTYLE | wire::NO_ZEROES);
        out.extend_from_slice(&u32::from(ours).to_be_bytes());
        put_option(out, option::STRUCTURED_REPLY, &[]);
        self.state = State::Structured;
        Ok((18, Progress::Again))
    }

    fn reply(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, Progress), ClientError> {
        let mut reader = Reader(input);
        let (Some(magic), Some(option), Some(kind), Some(length)) =
            (reader.u64(), reader.u32(), reader.u32(), reader.u32())
        else {
            return Ok((0, Progress::More));
        };
        self.replies += 1;
        let mine = match self.state {
            State::Structured => option::STRUCTURED_REPLY,
            State::Context => option::SET_META_CONTEXT,
            _ => option::GO,
        };
        let sane = magic == wire::OPTION_REPLY_MAGIC && option == mine && length <= MAX_PAYLOAD;
        if !sane || self.replies > MAX_REPLIES {
            return Err(ClientError::Protocol);
        }
        let Some(payload) = reader.bytes(length as usize) else {
            self.replies -= 1; // looked at again when it is whole
            return Ok((0, Progress::More));
        };
        let progress = self.whole_reply(kind, payload, out)?;
        Ok((20 + payload.len(), progress))
    }

    fn whole_reply(
        &mut self,
        kind: u32,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Progress, ClientError> {
        let failed = kind & rep::ERROR != 0;
        match self.state {
            State::Structured if kind == rep::ACK => {
                self.export.structured = true;
                let mut ask = Vec::new();
                put_string(&mut ask, &self.name);
                ask.extend_from_slice(&1u32.to_be_bytes());
                put_string(&mut ask, wire::BASE_ALLOCATION);
                put_option(out, option::SET_META_CONTEXT, &ask);
                self.enter(State::Context);
            }
            State::Structured if failed => self.ask_go(out),
            State::Context if kind == rep::META_CONTEXT => {
                let mut reader = Reader(payload);
                let id = reader.u32().ok_or(ClientError::Protocol)?;
                let ours = reader.0 == wire::BASE_ALLOCATION.as_bytes();
                // One context was asked for, so its number is not needed to tell it from others.
                let _ = id;
                self.export.allocation |= ours;
            }
            State::Context if failed || kind == rep::ACK => {
                self.export.allocation &= kind == rep::ACK;
                self.ask_go(out);
            }
            State::Go if kind == rep::INFO => self.learn(payload)?,
            State::Go if kind == rep::ACK && self.told => {
                self.state = State::Ended;
                return Ok(Progress::Ready(self.export));
            }
            State::Go if kind == rep::ERR_UNKNOWN => return Err(ClientError::NoSuchExport),
            State::Go if kind == rep::ERR_UNSUP => return Err(ClientError::TooOld),
            State::Go if failed => return Err(ClientError::Refused(kind & !rep::ERROR)),
            _ => return Err(ClientError::Protocol),
        }
        Ok(Progress::Again)
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.replies = 0;
    }

    fn ask_go(&mut self, out: &mut Vec<u8>) {
        let mut ask = Vec::new();
        put_string(&mut ask, &self.name);
        ask.extend_from_slice(&1u16.to_be_bytes());
        ask.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
        put_option(out, option::GO, &ask);
        self.enter(State::Go);
    }

    fn learn(&mut self, payload: &[u8]) -> Result<(), ClientError> {
        let mut reader = Reader(payload);
        let parsed = (|| match reader.u16()? {
            info::EXPORT => {
                self.export.size_bytes = reader.u64()?;
                self.export.flags = reader.u16()?;
                self.told = true;
                reader.is_empty().then_some(())
            }
            info::BLOCK_SIZE => {
                self.export.minimum_bytes = reader.u32()?;
                self.export.preferred_bytes = reader.u32()?;
                self.export.maximum_bytes = reader.u32()?;
                let sane = self.export.minimum_bytes.is_power_of_two()
                    && self.export.maximum_bytes >= self.export.minimum_bytes;
                (reader.is_empty() && sane).then_some(())
            }
            _ => Some(()),
        })();
        self.export.maximum_bytes = self.export.maximum_bytes.min(MAX_REQUEST_BYTES);
        parsed.ok_or(ClientError::Protocol)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::MemVolume;
    use crate::nbd::negotiation::{Catalog, Negotiation, Next};
    use std::rc::Rc;

    fn shake(name: &str) -> Result<ExportInfo, ClientError> {
        let catalog = Catalog::default();
        catalog.publish("a/b", Rc::new(MemVolume::new(1 << 20)));
        catalog.publish("a/c", Rc::new(MemVolume::new(1 << 21)));
        let (mut server, mut client) = (Negotiation::new(), Hello::new(name));
        let (mut to_client, mut to_server) = (Negotiation::greeting(), Vec::new());
        for _ in 0..1000 {
            // One byte at a time: every prefix must be understood as incomplete.
            let take = 1.min(to_client.len());
            let mut seen = take;
            loop {
                let mut out = Vec::new();
                let (used, progress) = client.step(&to_client[..seen], &mut out)?;
                to_server.extend(out);
                to_client.drain(..used);
                seen -= used.min(seen);
                match progress {
                    Progress::Ready(export) => return Ok(export),
                    Progress::Again => {}
                    Progress::More if seen < to_client.len() => seen += 1,
                    Progress::More => break,
                }
            }
            loop {
                let (used, next) = server.step(&to_server, &catalog, &mut to_client);
                to_server.drain(..used);
                match next {
                    Next::Again => {}
                    Next::Open(opened) => {
                        assert_eq!(opened.volume.info().size_bytes, opened.export.size_bytes);
                        break;
                    }
                    Next::More | Next::Close => break,
                }
            }
        }
        panic!("the handshake does not end");
    }

    #[test]
    fn our_client_and_our_server_agree() {
        let export = shake("a/b").unwrap();
        assert_eq!(
            (export.size_bytes, export.structured, export.allocation),
            (1 << 20, true, true)
        );
        assert_eq!(shake("a/c").unwrap().size_bytes, 1 << 21);
        assert_eq!(shake("a/d"), Err(ClientError::NoSuchExport));
        assert_eq!(
            shake(""),
            Err(ClientError::NoSuchExport),
            "two exports: no default"
        );
    }

    #[test]
    fn random_bytes_never_panic_the_client() {
        let mut state = 7u64;
        let mut next = move || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        for round in 0..20_000 {
            let mut hello = Hello::new("x");
            let mut bytes = Negotiation::greeting();
            for part in 0..4u32 {
                if round % 2 == 0 {
                    bytes.extend_from_slice(&wire::OPTION_REPLY_MAGIC.to_be_bytes());
                    let option = [8u32, 10, 7, 7][part as usize];
                    bytes.extend_from_slice(&option.to_be_bytes());
                    bytes.extend_from_slice(&u32::from(next() % 5).to_be_bytes());
                    bytes.extend_from_slice(&u32::from(next() % 16).to_be_bytes());
                }
                bytes.extend((0..next() % 16).map(|_| next()));
            }
            let mut out = Vec::new();
            while let Ok((used, Progress::Again)) = hello.step(&bytes, &mut out) {
                bytes.drain(..used);
            }
        }
    }
}
