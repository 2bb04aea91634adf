//! The handshake: fixed newstyle option haggling, from the greeting to the chosen export.
//!
//! Each option is read whole (at most [`OPTION_MAX`] bytes; longer ones are skipped and answered with
//! `ERR_TOO_BIG`) and answered from the export list alone, so nothing here waits for anything but an export
//! that is on its way ([`Step::Awaited`]). An option we do not know is answered with `ERR_UNSUP`: that is how
//! clients find out what a server can do.
//! Facts: NBD `doc/proto.md`, "Handshake" and "Option types".

use bytes::{Buf, BufMut};

use crate::{
    error::ProtocolError,
    export::{Export, Exports},
    outbox::Outbox,
    proto::{
        BASE_ALLOCATION, BASE_ALLOCATION_ID, MAGIC_INIT, MAGIC_OPT, MAGIC_OPT_REPLY, MAX_PAYLOAD, MAX_STRING,
        OPTION_LEN, flag, handshake_flag, info, opt, rep,
    },
    tls::Security,
    transmission::{Headers, Terms},
};

/// Longest option read, in bytes: an export name and a handful of queries fit many times.
pub(crate) const OPTION_MAX: usize = 32 << 10;

/// Exports told at a time: a list may be long, and what waits for a client to read it is to be short.
const LISTED: usize = 64;

/// What the handshake knows so far.
#[derive(Debug, Default)]
pub(crate) struct Handshake {
    /// `None` until the client's flags arrived.
    client: Option<u16>,
    headers: Headers,
    /// The export that `base:allocation` was selected for, by canonical name.
    meta_export: Option<String>,
    pub(crate) security: Security,
    /// The server is going away: choices of an export are refused.
    pub(crate) shutdown: bool,
    /// Bytes of an oversized option still to be skipped.
    skip: u64,
    /// The export told last, of a list that has more.
    listing: Option<String>,
    /// Options answered, without those that only lead into TLS.
    pub(crate) answered: u64,
}

/// What came of some bytes.
#[derive(Debug)]
pub(crate) enum Step {
    /// This many bytes were used; call again.
    Used(usize),
    /// More bytes are needed.
    Starved,
    /// The export of this name is asked for and not there yet; call again later.
    Awaited(String),
    /// The client leaves.
    Abort(usize),
    /// TLS begins after this many bytes.
    Secure(usize),
    /// Transmission begins after this many bytes.
    Go(usize, Box<Export>, Terms),
}

/// Why an option got an error reply.
struct Refusal(u32, &'static str);

const INVALID: Refusal = Refusal(rep::ERR_INVALID, "malformed option");

/// The server's first words.
pub(crate) fn greeting(out: &mut Outbox) {
    out.head(&MAGIC_INIT.to_be_bytes());
    out.head(&MAGIC_OPT.to_be_bytes());
    out.head(&(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES).to_be_bytes());
}

impl Handshake {
    /// Takes the next option, or the client's flags, from the front of `rx`.
    pub(crate) fn step(
        &mut self,
        rx: &[u8],
        exports: &dyn Exports,
        out: &mut Outbox,
    ) -> Result<Step, ProtocolError> {
        if self.skip > 0 {
            let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(rx.len());
            self.skip = self.skip.saturating_sub(skipped as u64);
            return Ok(if skipped == 0 { Step::Starved } else { Step::Used(skipped) });
        }
        if self.listing.is_some() {
            self.list(exports, out);
            return Ok(Step::Used(0));
        }
        let Some(client) = self.client else {
            let Some(flags) = rx.first_chunk().map(|b| u32::from_be_bytes(*b)) else {
                return Ok(Step::Starved);
            };
            let known = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
            self.client = u16::try_from(flags).ok().filter(|flags| flags & !known == 0);
            return if self.client.is_some() {
                Ok(Step::Used(4))
            } else {
                Err(ProtocolError::ClientFlags(flags))
            };
        };
        let Some(mut header) = rx.get(..OPTION_LEN) else { return Ok(Step::Starved) };
        let magic = header.get_u64();
        if magic != MAGIC_OPT {
            return Err(ProtocolError::OptionMagic(magic));
        }
        let (option, len) = (header.get_u32(), header.get_u32() as usize);
        if client & handshake_flag::FIXED_NEWSTYLE == 0 && option != opt::EXPORT_NAME {
            return Err(ProtocolError::NotFixed(option));
        }
        if len > OPTION_MAX {
            if option == opt::EXPORT_NAME {
                return Err(ProtocolError::UnknownExport(format!("a name of {len} bytes")));
            }
            self.skip = len as u64;
            respond(out, option, rep::ERR_TOO_BIG, b"the option is too long");
            return Ok(Step::Used(OPTION_LEN));
        }
        let used = OPTION_LEN.saturating_add(len);
        let Some(data) = rx.get(OPTION_LEN..used) else { return Ok(Step::Starved) };
        if let Some(name) = self.must_wait_for(option, data, exports) {
            return Ok(Step::Awaited(name.to_owned()));
        }
        match option {
            opt::ABORT => {
                respond(out, option, rep::ACK, &[]);
                return Ok(Step::Abort(used));
            }
            opt::STARTTLS => return Ok(self.start_tls(data, used, out)),
            opt::EXPORT_NAME if self.security == Security::Required => return Err(ProtocolError::NotSecured),
            _ if self.security == Security::Required => {
                respond(out, option, rep::ERR_TLS_REQD, b"TLS is required here");
                return Ok(Step::Used(used));
            }
            opt::EXPORT_NAME => return self.export_name(client, data, used, exports, out),
            opt::LIST if data.is_empty() => {
                self.answered = self.answered.saturating_add(1);
                self.list(exports, out);
                return Ok(Step::Used(used));
            }
            _ => {}
        }
        self.answered = self.answered.saturating_add(1);
        match self.answer(option, data, exports, out) {
            Ok(None) => respond(out, option, rep::ACK, &[]),
            Ok(Some((export, terms))) => {
                respond(out, option, rep::ACK, &[]);
                return Ok(Step::Go(used, Box::new(export), terms));
            }
            Err(Refusal(code, why)) => respond(out, option, code, why.as_bytes()),
        }
        Ok(Step::Used(used))
    }

    /// The export that an option names, if it is not there and may come: it is answered when that is known.
    fn must_wait_for<'d>(&self, option: u32, mut data: &'d [u8], exports: &dyn Exports) -> Option<&'d str> {
        let name = match option {
            _ if self.shutdown || self.security == Security::Required => None,
            opt::EXPORT_NAME => str::from_utf8(data).ok().filter(|name| name.len() <= MAX_STRING),
            opt::INFO | opt::GO | opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => {
                take_string(&mut data).ok()
            }
            _ => None,
        };
        name.filter(|name| exports.lookup(name).is_none() && exports.is_awaited(name))
    }

    /// Everything of an option's reply but its last word.
    fn answer(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn Exports,
        out: &mut Outbox,
    ) -> Result<Option<(Export, Terms)>, Refusal> {
        match option {
            // The other case was answered already.
            opt::LIST => Err(INVALID),
            opt::STRUCTURED_REPLY if !data.is_empty() => Err(INVALID),
            opt::STRUCTURED_REPLY => match self.headers {
                Headers::Extended => {
                    Err(Refusal(rep::ERR_EXT_HEADER_REQD, "extended headers are already in use"))
                }
                Headers::Structured => Err(Refusal(rep::ERR_INVALID, "already negotiated")),
                Headers::Simple => {
                    self.headers = Headers::Structured;
                    Ok(None)
                }
            },
            opt::EXTENDED_HEADERS if !data.is_empty() => Err(INVALID),
            opt::EXTENDED_HEADERS if self.headers == Headers::Extended => {
                Err(Refusal(rep::ERR_INVALID, "already negotiated"))
            }
            opt::EXTENDED_HEADERS => {
                self.headers = Headers::Extended;
                Ok(None)
            }
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => {
                self.meta_context(option, data, exports, out).map(|()| None)
            }
            opt::INFO | opt::GO => {
                let chosen = self.info(option, data, exports, out)?;
                Ok(Some(chosen).filter(|_| option == opt::GO))
            }
            _ => Err(Refusal(rep::ERR_UNSUP, "unknown option")),
        }
    }

    /// The next part of a list, and that it is complete if it is.
    fn list(&mut self, exports: &dyn Exports, out: &mut Outbox) {
        let part = exports.list(self.listing.as_deref(), LISTED);
        for entry in &part {
            let mut body = Vec::with_capacity(entry.name.len().saturating_add(4));
            string(&mut body, &entry.name);
            body.extend_from_slice(entry.description.as_bytes());
            respond(out, opt::LIST, rep::SERVER, &body);
        }
        self.listing = part.into_iter().nth(LISTED.saturating_sub(1)).map(|last| last.name);
        if self.listing.is_none() {
            respond(out, opt::LIST, rep::ACK, &[]);
        }
    }

    fn start_tls(&mut self, data: &[u8], used: usize, out: &mut Outbox) -> Step {
        let refusal = match self.security {
            _ if !data.is_empty() => Some(INVALID),
            Security::Off => Some(Refusal(rep::ERR_POLICY, "TLS is not offered")),
            Security::On => Some(Refusal(rep::ERR_INVALID, "TLS is on already")),
            Security::Offered | Security::Required => None,
        };
        if let Some(Refusal(code, why)) = refusal {
            respond(out, opt::STARTTLS, code, why.as_bytes());
            return Step::Used(used);
        }
        respond(out, opt::STARTTLS, rep::ACK, &[]);
        *self = Self {
            client: self.client,
            shutdown: self.shutdown,
            security: Security::On,
            answered: self.answered,
            ..Self::default()
        };
        Step::Secure(used)
    }

    fn export_name(
        &self,
        client: u16,
        data: &[u8],
        used: usize,
        exports: &dyn Exports,
        out: &mut Outbox,
    ) -> Result<Step, ProtocolError> {
        let unknown = || ProtocolError::unknown_export(data);
        // With extended headers a client must use GO.
        if self.headers == Headers::Extended || self.shutdown || data.len() > MAX_STRING {
            return Err(unknown());
        }
        let name = str::from_utf8(data).map_err(|_| unknown())?;
        let export = exports.lookup(name).ok_or_else(unknown)?;
        let terms = self.terms(&export);
        out.head(&terms.size.to_be_bytes());
        out.head(&transmission_flags(&terms).to_be_bytes());
        if client & handshake_flag::NO_ZEROES == 0 {
            out.head(&[0; 124]);
        }
        Ok(Step::Go(used, Box::new(export), terms))
    }

    fn terms(&self, export: &Export) -> Terms {
        let geometry = export.volume.geometry();
        Terms {
            size: geometry.size,
            read_only: geometry.read_only,
            block: geometry.block,
            headers: self.headers,
            base_allocation: self.headers != Headers::Simple
                && self.meta_export.as_deref() == Some(export.name.as_str()),
        }
    }

    fn info(
        &self,
        option: u32,
        mut data: &[u8],
        exports: &dyn Exports,
        out: &mut Outbox,
    ) -> Result<(Export, Terms), Refusal> {
        let name = take_string(&mut data)?;
        let count = data.try_get_u16().map_err(|_| INVALID)?;
        if data.len() != usize::from(count).saturating_mul(2) {
            return Err(INVALID);
        }
        let mut asked_name = false;
        let mut asked_description = false;
        while let Ok(kind) = data.try_get_u16() {
            asked_name |= kind == info::NAME;
            asked_description |= kind == info::DESCRIPTION;
        }
        if self.shutdown {
            return Err(Refusal(rep::ERR_SHUTDOWN, "the server is shutting down"));
        }
        let export = exports.lookup(name).ok_or(Refusal(rep::ERR_UNKNOWN, "no such export"))?;
        let terms = self.terms(&export);

        let mut body = Vec::with_capacity(16);
        body.put_u16(info::EXPORT);
        body.put_u64(terms.size);
        body.put_u16(transmission_flags(&terms));
        respond(out, option, rep::INFO, &body);

        // Any offset and length is served; these are the defaults of the protocol but for the preferred
        // size, so a client that did not ask may ignore them.
        let block = terms.block;
        let preferred = if block.is_power_of_two() { block.clamp(512, MAX_PAYLOAD) } else { 4096 };
        body.clear();
        body.put_u16(info::BLOCK_SIZE);
        body.put_u32(1);
        body.put_u32(preferred);
        body.put_u32(MAX_PAYLOAD);
        respond(out, option, rep::INFO, &body);

        if asked_name {
            body.clear();
            body.put_u16(info::NAME);
            body.extend_from_slice(export.name.as_bytes());
            respond(out, option, rep::INFO, &body);
        }
        if asked_description && !export.description.is_empty() {
            body.clear();
            body.put_u16(info::DESCRIPTION);
            body.extend_from_slice(export.description.as_bytes());
            respond(out, option, rep::INFO, &body);
        }
        Ok((export, terms))
    }

    fn meta_context(
        &mut self,
        option: u32,
        mut data: &[u8],
        exports: &dyn Exports,
        out: &mut Outbox,
    ) -> Result<(), Refusal> {
        let set = option == opt::SET_META_CONTEXT;
        if set {
            // A new choice replaces the old one even if it fails.
            self.meta_export = None;
        }
        if self.headers == Headers::Simple {
            return Err(Refusal(rep::ERR_INVALID, "structured replies come first"));
        }
        let name = take_string(&mut data)?;
        let count = data.try_get_u32().map_err(|_| INVALID)?;
        let mut wanted = count == 0 && !set;
        for _ in 0..count {
            let query = take_string(&mut data)?;
            if !query.contains(':') {
                return Err(Refusal(rep::ERR_INVALID, "a query starts with a namespace and a colon"));
            }
            // A namespace alone lists what it holds, and selects nothing.
            wanted |= query == BASE_ALLOCATION || (!set && query == "base:");
        }
        if !data.is_empty() {
            return Err(INVALID);
        }
        let export = exports.lookup(name).ok_or(Refusal(rep::ERR_UNKNOWN, "no such export"))?;
        if wanted {
            let mut body = Vec::with_capacity(32);
            body.put_u32(if set { BASE_ALLOCATION_ID } else { 0 });
            body.extend_from_slice(BASE_ALLOCATION.as_bytes());
            respond(out, option, rep::META_CONTEXT, &body);
            if set {
                self.meta_export = Some(export.name);
            }
        }
        Ok(())
    }
}

/// What an export can do. Multi-conn is true of every volume: a flush covers any client's writes, and no
/// connection keeps data of its own.
fn transmission_flags(terms: &Terms) -> u16 {
    let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::CAN_MULTI_CONN | flag::SEND_CACHE;
    if terms.headers != Headers::Simple {
        flags |= flag::SEND_DF;
    }
    flags
        | if terms.read_only {
            flag::READ_ONLY
        } else {
            flag::SEND_FUA | flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO
        }
}

fn respond(out: &mut Outbox, option: u32, kind: u32, body: &[u8]) {
    out.head(&MAGIC_OPT_REPLY.to_be_bytes());
    out.head(&option.to_be_bytes());
    out.head(&kind.to_be_bytes());
    out.head(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.head(body);
}

fn string(body: &mut Vec<u8>, text: &str) {
    body.put_u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
    body.extend_from_slice(text.as_bytes());
}

/// A 32-bit length and so many bytes of UTF-8.
fn take_string<'a>(data: &mut &'a [u8]) -> Result<&'a str, Refusal> {
    let len = data.try_get_u32().map_err(|_| INVALID)? as usize;
    let (text, rest) = data.split_at_checked(len).ok_or(INVALID)?;
    *data = rest;
    if len > MAX_STRING {
        return Err(Refusal(rep::ERR_INVALID, "a string longer than 4096 bytes"));
    }
    str::from_utf8(text).map_err(|_| Refusal(rep::ERR_INVALID, "a string that is not UTF-8"))
}
