//! Runs each target on every input of its corpus, with header prediction and without, and on random inputs.

use std::path::Path;

use fuzz::archive::{Corpus, unpack};
use fuzz::target::{ALL, Target};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// Number of random inputs for each target.
const DRAWN: u64 = 300;

fn corpus(target: &Target) -> Corpus {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    unpack(&bytes).expect("an archive")
}

fn replay(name: &str) {
    let target = fuzz::named(name).expect("a target");
    let corpus = corpus(&target);
    assert!(!corpus.is_empty(), "{name} has no corpus");
    for (entry, input) in &corpus {
        // This line is printed only if the test fails.
        println!("{name}: {entry}");
        (target.run)(input);
    }
}

fn draw(name: &str) {
    let target = fuzz::named(name).expect("a target");
    for seed in 0..DRAWN {
        println!("{name}: drawn {seed}");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut input = vec![0; rng.next_u32() as usize % target.max_bytes];
        rng.fill_bytes(&mut input);
        (target.run)(&input);
    }
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(mod $name {
            #[test]
            fn holds_for_its_corpus() {
                super::replay(stringify!($name));
            }

            #[test]
            fn holds_for_its_corpus_without_header_prediction() {
                fuzz::target::take_general_way();
                super::replay(stringify!($name));
            }

            #[test]
            fn holds_for_drawn_inputs() {
                super::draw(stringify!($name));
            }
        })*

        #[test]
        fn every_target_is_tried_here() {
            assert_eq!(ALL.iter().map(|target| target.name).collect::<Vec<_>>(), [$(stringify!($name)),*]);
        }
    };
}

#[cfg(target_os = "linux")]
targets!(frames connection startup stream roce verbs wire);
#[cfg(not(target_os = "linux"))]
targets!(frames connection startup stream roce verbs);
