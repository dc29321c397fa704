//! Scenes parsed by this target and by the target over libibverbs (`tests/iwprobe/c`). Both targets accept
//! the same texts, and every word of `tests/iwprobe/TARGET.md`.

use std::io::Write;
use std::process::{Command, Stdio};

use super::*;

#[test]
fn scenes_are_read_word_by_word() {
    let scene =
        Scene::parse("iwp1 mr=4096:rw mr=64:-:x recv=2x64 recv=1x0 ird=3 peer=1f:1000 then=r64,w8@16+ close");
    let scene = scene.unwrap();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    assert_eq!(scene.regions[0], RegionWish { length: 4096, access: rights, scope: Scope::Domain });
    assert_eq!(scene.regions[1].scope, Scope::OtherDomain);
    assert_eq!((scene.receives, scene.ird, scene.ord), (vec![(2, 64), (1, 0)], Some(3), None));
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
    assert_eq!(Scene::parse("iwp1 do=s65536,s1"), Err("do".into()), "too many bytes");
}

/// Scenes with each word, operation and scope, and scenes with the smallest errors in them.
const SCENES: [&str; 86] = [
    "",
    "hello",
    "iwp12",
    "IWP1 close",
    "iwp1",
    "iwp1 ",
    "iwp1  close",
    "iwp1 close ",
    "iwp1 dance",
    "iwp1 mr",
    "iwp1 mr=",
    "iwp1 mr=4096:rw",
    "iwp1 mr=1:-",
    "iwp1 mr=65536:a",
    "iwp1 mr=0:r",
    "iwp1 mr=65537:r",
    "iwp1 mr=+8:r",
    "iwp1 mr=8:",
    "iwp1 mr=8:r-",
    "iwp1 mr=8:-r",
    "iwp1 mr=8:x",
    "iwp1 mr=8:wra",
    "iwp1 mr=8:rr",
    "iwp1 mr=8:r:q",
    "iwp1 mr=8:r:o",
    "iwp1 mr=8:r:x",
    "iwp1 mr=8:r:z",
    "iwp1 mr=8:r:",
    "iwp1 mr=8:r:y",
    "iwp1 mr=8:r:x:x",
    "iwp1 mr=1:r mr=2:w mr=3:a mr=4:-",
    "iwp1 mr=1:r mr=2:w mr=3:a mr=4:- mr=5:r",
    "iwp1 recv=2x64",
    "iwp1 recv=64x65536 recv=1x0",
    "iwp1 recv=0x1",
    "iwp1 recv=65x1",
    "iwp1 recv=1x65537",
    "iwp1 recv=1",
    "iwp1 recv=1x",
    "iwp1 recv=1x1 recv=1x2 recv=1x3 recv=1x4",
    "iwp1 recv=1x1 recv=1x2 recv=1x3 recv=1x4 recv=1x5",
    "iwp1 ird=0 ord=65535",
    "iwp1 ird=65536",
    "iwp1 ird=x",
    "iwp1 ird=",
    "iwp1 ird=1 ird=1",
    "iwp1 ord=1 ord=2",
    "iwp1 peer=1f:1000",
    "iwp1 peer=ffffffff:ffffffffffffffff",
    "iwp1 peer=100000000:0",
    "iwp1 peer=0:10000000000000000",
    "iwp1 peer=1F:0",
    "iwp1 peer=+1:0",
    "iwp1 peer=1",
    "iwp1 peer=1:1 peer=1:1",
    "iwp1 peer=1:2 do=w8,r16@4,s1,e2,i3,j4,f,c@8,m",
    "iwp1 do=s0,e0,m peer=0:0",
    "iwp1 peer=1:2 do=w8+,r8@8+,f+,m+,s1+",
    "iwp1 do=w8",
    "iwp1 do=r8",
    "iwp1 do=i8",
    "iwp1 do=f",
    "iwp1 do=c",
    "iwp1 do=",
    "iwp1 do=s8,",
    "iwp1 do=,s8",
    "iwp1 do=w",
    "iwp1 do=x1",
    "iwp1 do=m1",
    "iwp1 peer=1:1 do=w1@",
    "iwp1 peer=1:1 do=f1",
    "iwp1 do=s1@4",
    "iwp1 do=m@4",
    "iwp1 do=s1++",
    "iwp1 do=s1 do=s1",
    "iwp1 then=s1 then=s2",
    "iwp1 then=s2 do=s1",
    "iwp1 do=s65536,s1",
    "iwp1 do=s32768 then=s32769",
    "iwp1 do=m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m",
    "iwp1 do=m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m,m",
    "iwp1 close reject report",
    "iwp1 close close",
    "iwp1 solicited recv=1x1",
    "iwp1 solicited=1",
    "iwp1 bye",
];

/// Returns a scene in the format of `scene-words.c`.
fn written(scene: &Scene) -> String {
    let mut text = "scene".to_owned();
    for region in &scene.regions {
        let rights = [("r", Access::REMOTE_READ), ("w", Access::REMOTE_WRITE), ("a", Access::REMOTE_ATOMIC)];
        let rights: String =
            rights.iter().filter(|(_, right)| region.access.contains(*right)).map(|(c, _)| *c).collect();
        let scope = match region.scope {
            Scope::Domain => '-',
            Scope::ThisQueuePair => 'q',
            Scope::OtherQueuePair => 'o',
            Scope::OtherDomain => 'x',
            Scope::Nobody => 'z',
        };
        text += &format!(" mr {} {rights}{scope}", region.length);
    }
    for (count, length) in &scene.receives {
        text += &format!(" recv {length}").repeat(*count);
    }
    for (name, depth) in [("ird", scene.ird), ("ord", scene.ord)] {
        text += &depth.map(|depth| format!(" {name} {depth}")).unwrap_or_default();
    }
    text += &scene.peer.map(|peer| format!(" peer {} {}", peer.rkey, peer.addr)).unwrap_or_default();
    for (name, operations) in [("do", &scene.at_once), ("then", &scene.then)] {
        if !operations.is_empty() {
            text += &format!(" {name}");
        }
        for Operation { kind, length, offset, fenced } in operations {
            text += &format!(" {kind}{length}@{offset}{}", if *fenced { "+" } else { "" });
        }
    }
    let flags = [
        ("close", scene.close),
        ("reject", scene.reject),
        ("solicited", scene.solicited),
        ("report", scene.report),
        ("bye", scene.bye),
    ];
    text + &flags.iter().filter(|(_, set)| *set).map(|(name, _)| format!(" {name}")).collect::<String>()
}

/// Returns the output of the target over libibverbs for these scenes, line by line.
fn verbs_target(scenes: &[&str]) -> Vec<String> {
    let out = std::env::temp_dir().join(format!("iwprobe-scene-words-{}", std::process::id()));
    std::fs::create_dir_all(&out).unwrap();
    let program = out.join("scene-words");
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/iwprobe/c");
    let made = Command::new("make")
        .args(["--silent", "-C", sources, &format!("OUT={}", out.display())])
        .arg(&program)
        .status()
        .unwrap();
    assert!(made.success(), "make: {made}");
    let mut child = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines: String = scenes.iter().map(|scene| format!("{scene}\n")).collect();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    std::fs::remove_dir_all(&out).unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn both_targets_read_the_same_in_every_scene() {
    let theirs = verbs_target(&SCENES);
    assert_eq!(theirs.len(), SCENES.len());
    for (scene, theirs) in SCENES.iter().zip(theirs) {
        // If a word is invalid, only the names of the invalid words are compared.
        let theirs = if theirs.starts_with("bad") { theirs.split('=').next().unwrap() } else { &theirs };
        let bad = |word: String| format!("bad {}", word.split('=').next().unwrap());
        let ours = Scene::parse(scene).map_or_else(bad, |scene| written(&scene));
        assert_eq!(ours, theirs, "left this target, right the one over verbs, of '{scene}'");
    }
}

/// Returns the names of the words in the first column of the table below `heading`.
fn words_of(contract: &str, heading: &str) -> Vec<String> {
    let section = contract.split(heading).nth(1).unwrap();
    let rows =
        section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split('|').nth(1)).flat_map(|cell| cell.split(", "));
    let words = cells.filter_map(|cell| cell.trim().strip_prefix('`')?.split(['`', '=', ':']).next());
    words.map(str::to_owned).collect()
}

#[test]
fn every_word_of_the_contract_is_known_to_both_targets() {
    let contract = include_str!("../../../iwprobe/TARGET.md");
    let scene = words_of(contract, "## The words of a scene");
    assert!(scene.len() >= 11 && scene.contains(&"solicited".to_owned()), "{scene:?}");
    let accepted = SCENES.iter().filter_map(|scene| Scene::parse(scene).ok()).map(|scene| written(&scene));
    let accepted: Vec<String> = accepted.collect();
    for word in scene {
        assert!(accepted.iter().any(|text| text.split(' ').any(|w| w == word)), "no scene has {word}");
    }
    let report = words_of(contract, "## The words of a report");
    assert!(report.len() >= 8 && report.contains(&"event".to_owned()), "{report:?}");
    let ours = [include_str!("../stage.rs"), include_str!("../report.rs")].concat();
    let theirs = include_str!("../../../iwprobe/c/verbs-target.c");
    for word in report {
        let tells = |source: &str| {
            [format!("\"{word}\""), format!("\"{word}="), format!(" {word}="), format!("\" {word}\"")]
                .iter()
                .any(|text| source.contains(text))
        };
        assert!(tells(&ours) && tells(theirs), "{word} is not told by both");
    }
}
