//! What the probe asks for: TARGET.md, "The words of a scene".

use iwarp::memory::Access;
use iwarp::verbs::RemoteAddr;

use crate::contract::MAGIC;

const MAX_OCTETS: usize = 65_536;
const MAX_RECEIVES: usize = 64;
const MAX_OPERATIONS: usize = 32;

/// For whom an STag is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Domain,
    ThisQueuePair,
    OtherQueuePair,
    OtherDomain,
    Nobody,
}

/// A region to be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegionWish {
    pub(super) length: usize,
    pub(super) access: Access,
    pub(super) scope: Scope,
}

/// Something to be done toward the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    /// Its letter.
    pub(super) kind: char,
    pub(super) length: usize,
    pub(super) offset: u64,
    pub(super) fenced: bool,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Scene {
    pub(super) regions: Vec<RegionWish>,
    /// Length of each receive.
    pub(super) receives: Vec<usize>,
    pub(super) ird: Option<u16>,
    pub(super) ord: Option<u16>,
    pub(super) peer: Option<RemoteAddr>,
    pub(super) at_once: Vec<Operation>,
    pub(super) then: Vec<Operation>,
    pub(super) close: bool,
    pub(super) reject: bool,
    pub(super) report: bool,
    pub(super) bye: bool,
}

impl Scene {
    /// From a text; one that is none of a probe is the empty scene.
    ///
    /// # Errors
    /// The first word that makes no sense.
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
        let octets: usize = all.clone().map(|operation| operation.length).sum();
        if all.count() > MAX_OPERATIONS || octets > MAX_OCTETS {
            return Err("do".into());
        }
        Ok(scene)
    }

    fn take(&mut self, word: &str) -> Option<()> {
        match word.split_once('=') {
            Some(("mr", wish)) => {
                self.regions.push(region(wish)?);
                (self.regions.len() <= 4).then_some(())
            }
            Some(("recv", wish)) => {
                let (count, length) = wish.split_once('x')?;
                let (count, length) = (number(count, MAX_RECEIVES)?, number(length, MAX_OCTETS)?);
                self.receives.extend(std::iter::repeat_n(length, count));
                (self.receives.len() <= 4 * MAX_RECEIVES).then_some(())
            }
            Some(("ird", depth)) => self.ird.replace(depth.parse().ok()?).is_none().then_some(()),
            Some(("ord", depth)) => self.ord.replace(depth.parse().ok()?).is_none().then_some(()),
            Some(("peer", buffer)) => {
                let (stag, to) = buffer.split_once(':')?;
                let rkey = u32::from_str_radix(stag, 16).ok()?;
                let addr = u64::from_str_radix(to, 16).ok()?;
                self.peer.replace(RemoteAddr { addr, rkey }).is_none().then_some(())
            }
            Some(("do", list)) => {
                self.at_once = operations(list)?;
                Some(())
            }
            Some(("then", list)) => {
                self.then = operations(list)?;
                Some(())
            }
            Some(_) => None,
            None => {
                let flag = match word {
                    "close" => &mut self.close,
                    "reject" => &mut self.reject,
                    "report" => &mut self.report,
                    "bye" => &mut self.bye,
                    _ => return None,
                };
                *flag = true;
                Some(())
            }
        }
    }
}

fn number(text: &str, max: usize) -> Option<usize> {
    text.parse().ok().filter(|number| *number <= max)
}

fn region(wish: &str) -> Option<RegionWish> {
    let mut fields = wish.split(':');
    let length = number(fields.next()?, MAX_OCTETS).filter(|length| *length > 0)?;
    let mut access = Access::LOCAL_WRITE;
    for right in fields.next()?.chars() {
        access |= match right {
            'r' => Access::REMOTE_READ,
            'w' => Access::REMOTE_WRITE,
            'a' => Access::REMOTE_ATOMIC,
            '-' => Access::empty(),
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
        Some((text, offset)) => (text, offset.parse().ok()?),
        None => (text, 0),
    };
    let kind = text.chars().next()?;
    let length = match kind {
        'w' | 'r' | 's' | 'e' | 'i' | 'j' => number(&text[1..], MAX_OCTETS)?,
        'f' | 'c' | 'm' if text.len() == 1 => 0,
        _ => return None,
    };
    Some(Operation { kind, length, offset, fenced })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenes_are_read_word_by_word() {
        let scene = Scene::parse(
            "iwp1 mr=4096:rw mr=64:-:x recv=2x64 recv=1x0 ird=3 peer=1f:1000 then=r64,w8@16+ close",
        );
        let scene = scene.unwrap();
        let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        assert_eq!(scene.regions[0], RegionWish { length: 4096, access: rights, scope: Scope::Domain });
        assert_eq!(scene.regions[1].scope, Scope::OtherDomain);
        assert_eq!((scene.receives, scene.ird, scene.ord), (vec![64, 64, 0], Some(3), None));
        assert_eq!(scene.peer, Some(RemoteAddr { addr: 0x1000, rkey: 0x1f }));
        assert_eq!(scene.then[1], Operation { kind: 'w', length: 8, offset: 16, fenced: true });
        assert!(scene.close && !scene.report);
    }

    #[test]
    fn what_is_no_scene_is_empty_and_what_is_wrong_is_named() {
        assert_eq!(Scene::parse("").unwrap(), Scene::default());
        assert_eq!(Scene::parse("hello world").unwrap(), Scene::default());
        for wrong in [
            "mr=0:r",
            "mr=65537:r",
            "mr=8:q",
            "mr=8:r:y",
            "recv=65x1",
            "do=x1",
            "do=w",
            "do=w1@",
            "ird=x",
            "dance",
        ] {
            assert_eq!(Scene::parse(&format!("iwp1 {wrong}")), Err(wrong.to_owned()));
        }
        assert_eq!(Scene::parse("iwp1 do=w8"), Err("peer".into()), "nowhere to write to");
        assert_eq!(Scene::parse("iwp1 do=s65536,s1"), Err("do".into()), "too many octets");
    }
}
