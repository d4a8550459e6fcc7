//! The one gate of the NBD server: from a request as it came to a [`Command`] that may be carried
//! out, or a refusal. Range, overflow, length, flags and read-only are checked here and nowhere else.
//!
//! Invariant: a `Command` lies inside the volume, changes only a writable one, and carries no more
//! than [`MAX_REQUEST_BYTES`] of payload.

use super::limits::MAX_REQUEST_BYTES;
use super::wire::{ExportInfo, RequestHeader, cmd_flag, command, errno, flag};

/// What to do. The payload of a write follows on the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Read {
        offset: u64,
        length: u32,
    },
    Write {
        offset: u64,
        length: u32,
        durable: bool,
    },
    Flush,
    Trim {
        offset: u64,
        length: u32,
        durable: bool,
    },
    WriteZeroes {
        offset: u64,
        length: u32,
        durable: bool,
        may_trim: bool,
    },
    /// Checked, and nothing to do.
    Nothing,
    BlockStatus {
        offset: u64,
        length: u32,
        one: bool,
    },
    Disconnect,
}

/// Why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Answer with this error, after skipping so many bytes of payload.
    Answer { errno: u32, skip: u32 },
    /// The peer broke the protocol: close at once.
    Drop,
}

pub(super) fn admit(request: &RequestHeader, export: &ExportInfo) -> Result<Command, Refusal> {
    let &RequestHeader {
        flags,
        command,
        offset,
        length,
        ..
    } = request;
    if command == command::WRITE && length > MAX_REQUEST_BYTES {
        return Err(Refusal::Drop); // skipping up to 4 GiB for a peer that ignores our limit: no
    }
    let skip = if command == command::WRITE { length } else { 0 };
    let refuse = |errno| Err(Refusal::Answer { errno, skip });
    let Some(allowed) = allowed_flags(command, export) else {
        return refuse(errno::INVALID);
    };
    if flags & !allowed != 0 {
        return refuse(errno::INVALID);
    }
    let durable = flags & cmd_flag::FUA != 0;
    match command {
        command::DISCONNECT => return Ok(Command::Disconnect),
        command::FLUSH if offset == 0 && length == 0 => return Ok(Command::Flush),
        command::FLUSH => return refuse(errno::INVALID),
        _ => {}
    }
    let writes = matches!(
        command,
        command::WRITE | command::TRIM | command::WRITE_ZEROES
    );
    if writes && export.has(flag::READ_ONLY) {
        return refuse(errno::PERM);
    }
    let inside = offset
        .checked_add(u64::from(length))
        .is_some_and(|end| end <= export.size_bytes);
    if !inside {
        let grows = matches!(command, command::WRITE | command::WRITE_ZEROES);
        return refuse(if grows {
            errno::NO_SPACE
        } else {
            errno::INVALID
        });
    }
    match command {
        command::READ if length > MAX_REQUEST_BYTES => refuse(errno::INVALID),
        command::READ => Ok(Command::Read { offset, length }),
        command::WRITE => Ok(Command::Write {
            offset,
            length,
            durable,
        }),
        command::TRIM => Ok(Command::Trim {
            offset,
            length,
            durable,
        }),
        command::WRITE_ZEROES => {
            let may_trim = flags & cmd_flag::NO_HOLE == 0;
            // Zeroing that keeps the space is no faster than writing, so "fast or not at all" is no.
            if !may_trim && flags & cmd_flag::FAST_ZERO != 0 {
                return refuse(errno::NOT_SUPPORTED);
            }
            Ok(Command::WriteZeroes {
                offset,
                length,
                durable,
                may_trim,
            })
        }
        command::BLOCK_STATUS if length == 0 || !export.allocation => refuse(errno::INVALID),
        command::BLOCK_STATUS => Ok(Command::BlockStatus {
            offset,
            length,
            one: flags & cmd_flag::REQ_ONE != 0,
        }),
        _ => Ok(Command::Nothing), // CACHE: `allowed_flags` knows no other
    }
}

/// The flags a command may have; `None` for a command that there is not. FUA has a meaning only for
/// changes, but the protocol allows it everywhere.
fn allowed_flags(command: u16, export: &ExportInfo) -> Option<u16> {
    let fua = if export.has(flag::SEND_FUA) {
        cmd_flag::FUA
    } else {
        0
    };
    let own = match command {
        command::READ if export.structured => cmd_flag::DF,
        command::WRITE_ZEROES => cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO,
        command::BLOCK_STATUS => cmd_flag::REQ_ONE,
        command::READ
        | command::WRITE
        | command::DISCONNECT
        | command::FLUSH
        | command::TRIM
        | command::CACHE => 0,
        _ => return None,
    };
    Some(own | fua)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VolumeInfo;

    const SIZE: u64 = 1 << 20;
    const MIB: u32 = 1 << 20;

    fn export(read_only: bool, structured: bool) -> ExportInfo {
        let volume = VolumeInfo {
            size_bytes: SIZE,
            block_bytes: 4096,
            optimal_bytes: 65536,
            read_only,
            write_cache: false,
        };
        ExportInfo::of(&volume, structured, structured)
    }

    fn ask(command: u16, flags: u16, offset: u64, length: u32) -> RequestHeader {
        RequestHeader {
            flags,
            command,
            cookie: 0,
            offset,
            length,
        }
    }

    fn no(errno: u32, skip: u32) -> Result<Command, Refusal> {
        Err(Refusal::Answer { errno, skip })
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table of cases")]
    fn requests_are_admitted_or_refused_as_the_table_says() {
        use command::*;
        let inval = errno::INVALID;
        let table = [
            (
                ask(READ, 0, 0, MIB),
                Ok(Command::Read {
                    offset: 0,
                    length: MIB,
                }),
            ),
            (
                ask(READ, 0, SIZE, 0),
                Ok(Command::Read {
                    offset: SIZE,
                    length: 0,
                }),
            ),
            (ask(READ, 0, 1, MIB), no(inval, 0)),
            (ask(READ, 0, u64::MAX, 1), no(inval, 0)),
            (ask(READ, 0, u64::MAX - 10, u32::MAX), no(inval, 0)),
            (ask(READ, 0, 0, u32::MAX), no(inval, 0)),
            (
                ask(READ, cmd_flag::DF, 0, 9),
                Ok(Command::Read {
                    offset: 0,
                    length: 9,
                }),
            ),
            (ask(READ, cmd_flag::REQ_ONE, 0, 9), no(inval, 0)),
            (ask(READ, 1 << 15, 0, 9), no(inval, 0)),
            (
                ask(WRITE, 0, 7, 9),
                Ok(Command::Write {
                    offset: 7,
                    length: 9,
                    durable: false,
                }),
            ),
            (
                ask(WRITE, 1, 7, 9),
                Ok(Command::Write {
                    offset: 7,
                    length: 9,
                    durable: true,
                }),
            ),
            (ask(WRITE, 0, SIZE, 9), no(errno::NO_SPACE, 9)),
            (ask(WRITE, cmd_flag::NO_HOLE, 0, 9), no(inval, 9)),
            (ask(WRITE, 0, 0, MAX_REQUEST_BYTES + 1), Err(Refusal::Drop)),
            (ask(FLUSH, 0, 0, 0), Ok(Command::Flush)),
            (ask(FLUSH, 0, 1, 0), no(inval, 0)),
            (ask(FLUSH, 0, 0, 1), no(inval, 0)),
            (
                ask(TRIM, 0, 0, MIB),
                Ok(Command::Trim {
                    offset: 0,
                    length: MIB,
                    durable: false,
                }),
            ),
            (ask(TRIM, 0, SIZE, 1), no(inval, 0)),
            (ask(WRITE_ZEROES, 0, SIZE - 1, 2), no(errno::NO_SPACE, 0)),
            (
                ask(WRITE_ZEROES, 2 | 1, 0, 2),
                Ok(Command::WriteZeroes {
                    offset: 0,
                    length: 2,
                    durable: true,
                    may_trim: false,
                }),
            ),
            (
                ask(WRITE_ZEROES, cmd_flag::FAST_ZERO, 0, 2),
                Ok(Command::WriteZeroes {
                    offset: 0,
                    length: 2,
                    durable: false,
                    may_trim: true,
                }),
            ),
            (
                ask(WRITE_ZEROES, cmd_flag::FAST_ZERO | cmd_flag::NO_HOLE, 0, 2),
                no(errno::NOT_SUPPORTED, 0),
            ),
            (ask(CACHE, 0, 0, MIB), Ok(Command::Nothing)),
            (ask(CACHE, 0, SIZE, 1), no(inval, 0)),
            (ask(BLOCK_STATUS, 0, 0, 0), no(inval, 0)),
            (
                ask(BLOCK_STATUS, cmd_flag::REQ_ONE, 0, 1),
                Ok(Command::BlockStatus {
                    offset: 0,
                    length: 1,
                    one: true,
                }),
            ),
            (ask(DISCONNECT, 0, 0, 0), Ok(Command::Disconnect)),
            (ask(8, 0, 0, 0), no(inval, 0)),
            (ask(u16::MAX, u16::MAX, u64::MAX, u32::MAX), no(inval, 0)),
        ];
        for (request, expected) in table {
            assert_eq!(
                admit(&request, &export(false, true)),
                expected,
                "{request:?}"
            );
        }
    }

    #[test]
    fn a_read_only_export_refuses_every_change() {
        for command in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
            let skip = if command == command::WRITE { 4096 } else { 0 };
            let answer = admit(&ask(command, 0, 0, 4096), &export(true, true));
            assert_eq!(answer, no(errno::PERM, skip));
        }
        assert_eq!(
            admit(&ask(command::FLUSH, 0, 0, 0), &export(true, true)),
            Ok(Command::Flush)
        );
    }

    #[test]
    fn without_structured_replies_there_is_no_df_and_no_block_status() {
        let plain = export(false, false);
        assert!(!plain.has(flag::SEND_DF));
        assert_eq!(
            admit(&ask(command::READ, cmd_flag::DF, 0, 1), &plain),
            no(errno::INVALID, 0)
        );
        assert_eq!(
            admit(&ask(command::BLOCK_STATUS, 0, 0, 1), &plain),
            no(errno::INVALID, 0)
        );
    }
}
