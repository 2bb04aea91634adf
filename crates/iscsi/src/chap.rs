//! CHAP: one side sends a number and random bytes, the other a hash over them and the secret (RFC 7143 §12.1.3,
//! RFC 1994). Here are the hashes, the two spellings of binary values, and the exchange as a value.
//!
//! ```text
//!   CHAP_A=7,5 ─▶            ◀─ CHAP_A CHAP_I CHAP_C
//!   CHAP_N CHAP_R ─▶         ◀─ (done)
//!     with CHAP_I CHAP_C ─▶  ◀─ CHAP_N CHAP_R              mutual: we are asked, too
//! ```
//!
//! Only after the initiator has proven itself is anything of ours hashed for it, and never over the bytes we sent
//! ourselves: otherwise the answer to our challenge could be had from us.

use sha2::{Digest as _, Sha256};

use crate::{access::Auth, negotiate};

/// Bytes of our challenges.
const CHALLENGE: usize = 32;
/// Longest challenge we answer, in bytes (RFC 7143 §12.1.3).
const CHALLENGE_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hash {
    Md5,
    Sha256,
}

impl Hash {
    /// The number of an algorithm in CHAP_A, if we have it.
    fn parse(number: &str) -> Option<Self> {
        match negotiate::number(number)? {
            5 => Some(Self::Md5),
            7 => Some(Self::Sha256),
            _ => None,
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::Md5 => 5,
            Self::Sha256 => 7,
        }
    }

    fn response(self, id: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
        let bytes = [&[id], secret, challenge].concat();
        match self {
            Self::Md5 => md5(&bytes).to_vec(),
            Self::Sha256 => Sha256::digest(&bytes).to_vec(),
        }
    }
}

/// What an initiator sent in one request.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) algorithms: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) response: Option<String>,
    pub(crate) id: Option<String>,
    pub(crate) challenge: Option<String>,
}

impl Said {
    /// Keeps a key of CHAP. False for any other.
    pub(crate) fn take(&mut self, key: &str, value: &str) -> bool {
        let place = match key {
            "CHAP_A" => &mut self.algorithms,
            "CHAP_N" => &mut self.name,
            "CHAP_R" => &mut self.response,
            "CHAP_I" => &mut self.id,
            "CHAP_C" => &mut self.challenge,
            _ => return false,
        };
        *place = Some(value.to_owned());
        true
    }
}

/// The initiator has not shown that it has a secret of ours, or broke the exchange off.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failed;

/// Where an exchange stands.
#[derive(Debug)]
pub(crate) enum Exchange {
    /// CHAP was agreed on; its algorithm is next.
    Agreed,
    /// We have asked.
    Asked { hash: u8, id: u8, challenge: Vec<u8> },
    /// The initiator has proven itself.
    Proven(Auth),
}

impl Exchange {
    /// Takes what came with a request and says what to answer.
    pub(crate) fn step(
        &mut self,
        said: &Said,
        auth: &[Auth],
        random: &dyn Fn(&mut [u8]),
        answers: &mut Vec<u8>,
    ) -> Result<(), Failed> {
        match self {
            Self::Agreed => {
                let Some(offered) = &said.algorithms else { return Ok(()) };
                let hash = offered.split(',').find_map(Hash::parse).ok_or(Failed)?;
                let (mut id, mut challenge) = ([0], vec![0; CHALLENGE]);
                random(&mut id);
                random(&mut challenge);
                negotiate::put(answers, "CHAP_A", &hash.number().to_string());
                negotiate::put(answers, "CHAP_I", &id.map(|id| id.to_string()).concat());
                negotiate::put(answers, "CHAP_C", &hex(&challenge));
                let [id] = id;
                *self = Self::Asked { hash: hash.number(), id, challenge };
            }
            Self::Asked { hash, id, challenge } => {
                let hash = Hash::parse(&hash.to_string()).ok_or(Failed)?;
                let (Some(name), Some(response)) = (&said.name, &said.response) else { return Err(Failed) };
                let response = binary(response).ok_or(Failed)?;
                // Several may have one name: discovery has the credentials of all pools. All are hashed, always: how long the
                // answer takes tells neither which names there are nor which of the secrets was right.
                let mut proven = None;
                for auth in auth {
                    let right = same(&hash.response(*id, auth.secret.bytes(), challenge), &response);
                    proven = proven.or(Some(auth).filter(|auth| right & (auth.user == *name)));
                }
                let auth = proven.ok_or(Failed)?;
                if let (Some(their_id), Some(theirs)) = (&said.id, &said.challenge) {
                    let theirs = binary(theirs).ok_or(Failed)?;
                    let their_id =
                        negotiate::number(their_id).and_then(|id| u8::try_from(id).ok()).ok_or(Failed)?;
                    let (user, secret) = auth.mutual.as_ref().ok_or(Failed)?;
                    if theirs == *challenge || theirs.is_empty() || theirs.len() > CHALLENGE_MAX {
                        return Err(Failed);
                    }
                    negotiate::put(answers, "CHAP_N", user);
                    negotiate::put(
                        answers,
                        "CHAP_R",
                        &hex(&hash.response(their_id, secret.bytes(), &theirs)),
                    );
                } else if said.id.is_some() || said.challenge.is_some() {
                    return Err(Failed);
                }
                *self = Self::Proven(auth.clone());
            }
            Self::Proven(_) => {}
        }
        Ok(())
    }
}

/// Compares without telling by the time it takes where the difference is.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |mut text, byte| {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
        }
        text
    })
}

/// A binary value: `0x…` or `0b…` (RFC 7143 §6.1).
fn binary(text: &str) -> Option<Vec<u8>> {
    let (kind, digits) = text.split_at_checked(2)?;
    match kind {
        "0x" | "0X" => {
            let digits = digits.as_bytes();
            let nibble = |c: &u8| char::from(*c).to_digit(16).and_then(|d| u8::try_from(d).ok());
            let odd = digits.len() % 2;
            let (first, rest) = digits.split_at_checked(odd)?;
            let mut out: Vec<u8> = first.iter().map(nibble).collect::<Option<_>>()?;
            for pair in rest.chunks(2) {
                let [high, low] = pair else { return None };
                out.push((nibble(high)? << 4) | nibble(low)?);
            }
            Some(out)
        }
        "0b" | "0B" => base64(digits),
        _ => None,
    }
}

fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let padding = text.len().saturating_sub(digits.len());
    if padding > 2 || (padding > 0 && !text.len().is_multiple_of(4)) || digits.len() % 4 == 1 {
        return None;
    }
    let mut out = Vec::new();
    let (mut bits, mut have) = (0_u32, 0_u32);
    for c in digits.bytes() {
        let six = match c {
            b'A'..=b'Z' => c.wrapping_sub(b'A'),
            b'a'..=b'z' => c.wrapping_sub(b'a').wrapping_add(26),
            b'0'..=b'9' => c.wrapping_sub(b'0').wrapping_add(52),
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(six);
        have = have.saturating_add(6);
        if have >= 8 {
            have = have.saturating_sub(8);
            out.push(u8::try_from((bits >> have) & 0xff).unwrap_or(0));
        }
    }
    Some(out)
}

/// MD5 (RFC 1321). CHAP is all it is good for, and what every initiator has; the messages are short.
fn md5(message: &[u8]) -> [u8; 16] {
    const SHIFTS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];
    let mut padded = message.to_vec();
    padded.push(0x80);
    while padded.len() % 64 != 56 {
        padded.push(0);
    }
    padded.extend((message.len() as u64).wrapping_mul(8).to_le_bytes());
    let mut state = [0x6745_2301_u32, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
    let (blocks, _) = padded.as_chunks::<64>();
    for block in blocks {
        let (words, _) = block.as_chunks::<4>();
        let [mut a, mut b, mut c, mut d] = state;
        for step in 0..64_u32 {
            let (mixed, word) = match step / 16 {
                0 => ((b & c) | (!b & d), step),
                1 => ((d & b) | (!d & c), step.wrapping_mul(5).wrapping_add(1)),
                2 => (b ^ c ^ d, step.wrapping_mul(3).wrapping_add(5)),
                _ => (c ^ (b | !d), step.wrapping_mul(7)),
            };
            let word = words.get((word % 16) as usize).map_or(0, |word| u32::from_le_bytes(*word));
            // The constants are the integer parts of 2^32 times |sin(n)|, n in radians from 1.
            let sine = (f64::from(step.saturating_add(1)).sin().abs() * 4_294_967_296.0) as u32;
            let shift = SHIFTS.get((step / 16) as usize).and_then(|row| row.get((step % 4) as usize));
            let sum = a.wrapping_add(mixed).wrapping_add(sine).wrapping_add(word);
            (a, d, c) = (d, c, b);
            b = b.wrapping_add(sum.rotate_left(shift.copied().unwrap_or(0)));
        }
        for (total, part) in state.iter_mut().zip([a, b, c, d]) {
            *total = total.wrapping_add(part);
        }
    }
    let mut out = [0; 16];
    for (to, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *to = word.to_le_bytes();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn md5_gives_the_standards_own_examples() {
        for (message, digest) in [
            ("", "0xd41d8cd98f00b204e9800998ecf8427e"),
            ("a", "0x0cc175b9c0f1b6a831c399e269772661"),
            ("message digest", "0xf96b697d7cb7938d525a2f31aaf161d0"),
            (
                "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
                "0x57edf4a22be3c955ac49da2e2107b67a",
            ),
        ] {
            assert_eq!(hex(&md5(message.as_bytes())), digest, "{message}");
        }
    }

    #[test]
    fn binary_values_come_in_two_spellings() {
        for text in ["0x616263", "0X616263", "0bYWJj", "0BYWJj"] {
            assert_eq!(binary(text).as_deref(), Some(&b"abc"[..]), "{text}");
        }
        assert_eq!(binary("0bYWI=").as_deref(), Some(&b"ab"[..]));
        assert_eq!(binary("0xabc"), Some(vec![0x0a, 0xbc]));
        for wrong in ["", "0", "616263", "0xg0", "0bY", "0bYW=J", "0b====", "0bYWJ\u{e4}"] {
            assert_eq!(binary(wrong), None, "{wrong}");
        }
    }

    fn auth() -> Vec<Auth> {
        vec![
            Auth::new("other", b"some other secret").unwrap(),
            Auth::new("host", b"a secret of hosts").unwrap().mutual("pond", b"secret of the pond").unwrap(),
        ]
    }

    /// The exchange after our challenge; what we asked.
    fn asked(algorithms: &str) -> (Exchange, Hash, u8, Vec<u8>) {
        let mut exchange = Exchange::Agreed;
        let said = Said { algorithms: Some(algorithms.into()), ..Said::default() };
        exchange.step(&said, &auth(), &|bytes| bytes.fill(0x5a), &mut Vec::new()).unwrap();
        let Exchange::Asked { hash, id, challenge } = &exchange else { panic!() };
        let (hash, id, challenge) = (Hash::parse(&hash.to_string()).unwrap(), *id, challenge.clone());
        (exchange, hash, id, challenge)
    }

    fn answer(exchange: &mut Exchange, said: &Said) -> Result<String, Failed> {
        let mut answers = Vec::new();
        exchange.step(said, &auth(), &|_| {}, &mut answers)?;
        Ok(String::from_utf8(answers).unwrap())
    }

    #[test]
    fn who_knows_the_secret_is_let_in_and_nobody_else() {
        for (algorithms, picked) in [("5", Hash::Md5), ("6,7,5", Hash::Sha256), ("0x5", Hash::Md5)] {
            let (mut exchange, hash, id, challenge) = asked(algorithms);
            assert_eq!(hash, picked);
            let response = hex(&hash.response(id, b"a secret of hosts", &challenge));
            let said = Said { name: Some("host".into()), response: Some(response), ..Said::default() };
            assert_eq!(answer(&mut exchange, &said), Ok(String::new()));
            assert!(matches!(exchange, Exchange::Proven(auth) if auth.user == "host"));
        }
        for (name, secret) in
            [("host", &b"some other secret"[..]), ("nobody", b""), ("other", b"a secret of hosts")]
        {
            let (mut exchange, hash, id, challenge) = asked("5");
            let response = hex(&hash.response(id, secret, &challenge));
            let said = Said { name: Some(name.into()), response: Some(response), ..Said::default() };
            assert_eq!(answer(&mut exchange, &said), Err(Failed), "{name}");
        }
        let mut exchange = Exchange::Agreed;
        let unknown = Said { algorithms: Some("6,8".into()), ..Said::default() };
        assert_eq!(answer(&mut exchange, &unknown), Err(Failed));
    }

    /// As discovery has them, of several pools.
    #[test]
    fn of_several_secrets_of_one_name_each_lets_in_and_we_prove_ourselves_by_what_goes_with_it() {
        let of_pool =
            |secret: &[u8], ours: &[u8]| Auth::new("host", secret).unwrap().mutual("pond", ours).unwrap();
        let auth = [
            of_pool(b"secret of tank", b"proof of tank"),
            Auth::new("other", b"secret of others").unwrap(),
            of_pool(b"secret of lake", b"proof of lake"),
        ];
        let enter = |secret: &[u8]| {
            let (mut exchange, hash, id, challenge) = asked("7");
            let said = Said {
                name: Some("host".into()),
                response: Some(hex(&hash.response(id, secret, &challenge))),
                id: Some("9".into()),
                challenge: Some("0x0102".into()),
                ..Said::default()
            };
            let mut answers = Vec::new();
            exchange.step(&said, &auth, &|_| {}, &mut answers)?;
            let Exchange::Proven(proven) = exchange else { panic!() };
            Ok((proven, String::from_utf8(answers).unwrap()))
        };
        for (pool, secret, ours) in
            [(0, &b"secret of tank"[..], &b"proof of tank"[..]), (2, b"secret of lake", b"proof of lake")]
        {
            let proof = hex(&Hash::Sha256.response(9, ours, &[1, 2]));
            assert_eq!(enter(secret), Ok((auth[pool].clone(), format!("CHAP_N=pond\0CHAP_R={proof}\0"))));
        }
        assert_eq!(enter(b"secret of others"), Err(Failed), "of another name");
        assert_eq!(enter(b"secret of nobody"), Err(Failed));
    }

    #[test]
    fn we_prove_ourselves_to_who_has_and_never_over_our_own_challenge() {
        let (mut exchange, hash, id, challenge) = asked("5");
        let response = hex(&hash.response(id, b"a secret of hosts", &challenge));
        let mut said = Said {
            name: Some("host".into()),
            response: Some(response),
            id: Some("9".into()),
            challenge: Some("0x0102030405060708".into()),
            ..Said::default()
        };
        let proof = hex(&hash.response(9, b"secret of the pond", &[1, 2, 3, 4, 5, 6, 7, 8]));
        assert_eq!(answer(&mut exchange, &said), Ok(format!("CHAP_N=pond\0CHAP_R={proof}\0")));

        let (mut exchange, ..) = asked("5");
        said.challenge = Some(hex(&challenge));
        assert_eq!(answer(&mut exchange, &said), Err(Failed), "our own challenge");
        let (mut exchange, ..) = asked("5");
        said.challenge = Some(hex(&[1; CHALLENGE_MAX + 1]));
        assert_eq!(answer(&mut exchange, &said), Err(Failed), "oversize");
        let (mut exchange, ..) = asked("5");
        (said.challenge, said.response) = (Some("0x01".into()), Some("0x00".into()));
        assert_eq!(answer(&mut exchange, &said), Err(Failed), "who has not proven itself gets no proof");
    }
}
