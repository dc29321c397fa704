//! The scenes that the probe requests (the section "The words of a scene" of TARGET.md).

use iwarp::memory::Access;
use iwarp::verbs::RemoteAddr;

use crate::contract::MAGIC;

const MAX_BYTES: usize = 65_536;
const MAX_REGIONS: usize = 4;
/// Maximum number of `recv` words, and of receives that one such word requests.
const MAX_RECEIVE_WORDS: usize = 4;
const MAX_RECEIVES: usize = 64;
const MAX_OPERATIONS: usize = 32;

/// The scope of an STag: who may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Domain,
    ThisQueuePair,
    OtherQueuePair,
    OtherDomain,
    Nobody,
}

/// A region that a scene requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegionWish {
    pub(super) length: usize,
    pub(super) access: Access,
    pub(super) scope: Scope,
}

/// An operation that a scene requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    /// The letter of the operation.
    pub(super) kind: char,
    pub(super) length: usize,
    pub(super) offset: u64,
    pub(super) fenced: bool,
}

/// What the target has to set up and to do on one connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Scene {
    pub(super) regions: Vec<RegionWish>,
    /// Number and length of the receives, for each `recv` word.
    pub(super) receives: Vec<(usize, usize)>,
    pub(super) ird: Option<u16>,
    pub(super) ord: Option<u16>,
    pub(super) peer: Option<RemoteAddr>,
    pub(super) at_once: Vec<Operation>,
    pub(super) then: Vec<Operation>,
    pub(super) close: bool,
    pub(super) reject: bool,
    pub(super) solicited: bool,
    pub(super) report: bool,
    pub(super) bye: bool,
}

impl Scene {
    /// Parses a text. A text that does not come from a probe is the empty scene.
    ///
    /// # Errors
    /// The first word that is invalid.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut scene = Self::default();
        let mut words = text.split(' ');
        if words.next() != Some(MAGIC) {
            return Ok(scene);
        }
        for word in words {
            scene.take(word).ok_or_else(|| word.to_owned())?;
        }
        let all = scene.at_once.iter().chain(&scene.then);
        let needs_peer = all.clone().any(|operation| !matches!(operation.kind, 's' | 'e' | 'm'));
        if needs_peer && scene.peer.is_none() {
            return Err("peer".into());
        }
        let bytes: usize = all.clone().map(|operation| operation.length).sum();
        if all.count() > MAX_OPERATIONS || bytes > MAX_BYTES {
            return Err("do".into());
        }
        Ok(scene)
    }

    fn take(&mut self, word: &str) -> Option<()> {
        match word.split_once('=') {
            Some(("mr", wish)) => {
                self.regions.push(region(wish)?);
                (self.regions.len() <= MAX_REGIONS).then_some(())
            }
            Some(("recv", wish)) => {
                let (count, length) = wish.split_once('x')?;
                let count = number(count, MAX_RECEIVES).filter(|count| *count > 0)?;
                self.receives.push((count, number(length, MAX_BYTES)?));
                (self.receives.len() <= MAX_RECEIVE_WORDS).then_some(())
            }
            Some(("ird", depth)) => self.ird.replace(self::depth(depth)?).is_none().then_some(()),
            Some(("ord", depth)) => self.ord.replace(self::depth(depth)?).is_none().then_some(()),
            Some(("peer", buffer)) => {
                let (stag, to) = buffer.split_once(':')?;
                let (rkey, addr) = (u32::try_from(hexadecimal(stag)?).ok()?, hexadecimal(to)?);
                self.peer.replace(RemoteAddr { addr, rkey }).is_none().then_some(())
            }
            Some(("do", list)) => {
                std::mem::replace(&mut self.at_once, operations(list)?).is_empty().then_some(())
            }
            Some(("then", list)) => {
                std::mem::replace(&mut self.then, operations(list)?).is_empty().then_some(())
            }
            Some(_) => None,
            None => {
                let flag = match word {
                    "close" => &mut self.close,
                    "reject" => &mut self.reject,
                    "solicited" => &mut self.solicited,
                    "report" => &mut self.report,
                    "bye" => &mut self.bye,
                    _ => return None,
                };
                (!std::mem::replace(flag, true)).then_some(())
            }
        }
    }
}

/// Parses a decimal number without a sign.
fn decimal(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    digits.then(|| u64::from_str_radix(text, 16).ok())?
}

fn number(text: &str, max: usize) -> Option<usize> {
    decimal(text)?.try_into().ok().filter(|number| *number <= max)
}

fn depth(text: &str) -> Option<u16> {
    decimal(text)?.try_into().ok()
}

fn region(wish: &str) -> Option<RegionWish> {
    let mut fields = wish.split(':');
    let length = number(fields.next()?, MAX_BYTES).filter(|length| *length > 0)?;
    let mut access = Access::LOCAL_WRITE;
    let rights = fields.next().filter(|rights| !rights.is_empty())?;
    for right in rights.chars().filter(|_| rights != "-") {
        access |= match right {
            'r' => Access::REMOTE_READ,
            'w' => Access::REMOTE_WRITE,
            'a' => Access::REMOTE_ATOMIC,
            _ => return None,
        };
    }
    let scope = match fields.next() {
        None => Scope::Domain,
        Some("q") => Scope::ThisQueuePair,
        Some("o") => Scope::OtherQueuePair,
        Some("x") => Scope::OtherDomain,
        Some("z") => Scope::Nobody,
        Some(_) => return None,
    };
    fields.next().is_none().then_some(RegionWish { length, access, scope })
}

fn operations(list: &str) -> Option<Vec<Operation>> {
    list.split(',').map(operation).collect()
}

fn operation(text: &str) -> Option<Operation> {
    let (text, fenced) = text.strip_suffix('+').map_or((text, false), |text| (text, true));
    let (text, offset) = match text.split_once('@') {
        Some((text, offset)) if text.starts_with(['w', 'r', 'f', 'c']) => (text, decimal(offset)?),
        Some(_) => return None,
        None => (text, 0),
    };
    let kind = text.chars().next()?;
    let length = match kind {
        'w' | 'r' | 's' | 'e' | 'i' | 'j' => number(&text[1..], MAX_BYTES)?,
        'f' | 'c' | 'm' if text.len() == 1 => 0,
        _ => return None,
    };
    Some(Operation { kind, length, offset, fenced })
}

#[cfg(test)]
mod tests;
