//! `--json FILE`: an object for each measured row under the name of the row, and data about the whole run.

use benches::machine::MachineInfo;
use serde_json::{Map, Value, json};

use crate::compare::measures::Direction;
use crate::compare::sample::Sample;
use crate::compare::session::{Row, Session};

/// Returns the whole document: the measured rows by name, the rows that were not measured with the reason,
/// and further results.
pub(crate) fn document(
    machine: &MachineInfo,
    session: &Session,
    rows: &[Row],
    missing: &[(&str, String)],
    limits: Value,
) -> Value {
    let mut all: Map<String, Value> =
        rows.iter().map(|row| (row.measure.id.to_owned(), object(row))).collect();
    all.insert("machine".to_owned(), json!(machine));
    all.insert("quick".to_owned(), session.options.quick.into());
    all.insert("runs".to_owned(), json!(session.runs.get()));
    all.insert("wire".to_owned(), limits);
    let missing = missing.iter().map(|(id, reason)| ((*id).to_owned(), Value::from(reason.as_str())));
    all.insert("not_measured".to_owned(), missing.collect::<Map<_, _>>().into());
    all.into()
}

/// Returns the object of a row. The first fields are the result, which is the median pair of the worse
/// direction.
fn object(row: &Row) -> Value {
    let measure = row.measure;
    let directions: Map<String, Value> =
        row.directions.iter().map(|(name, sample)| ((*name).to_owned(), figures(sample))).collect();
    let mut object = Map::new();
    object.extend(figures(row.sample()).as_object().cloned().unwrap_or_default());
    object.extend(row.also.clone());
    let rest = json!({
        "unit": measure.unit,
        "what": measure.what,
        "against": measure.against,
        "better": if measure.better == Direction::HigherIsBetter { "more" } else { "less" },
        "goal": measure.goal,
        "aim": measure.aim,
        "reached": row.verdict(),
        "direction": row.directions[row.counts].0,
        "directions": directions,
    });
    object.extend(rest.as_object().cloned().unwrap_or_default());
    object.into()
}

fn figures(sample: &Sample) -> Value {
    json!({
        "ours": sample.median.ours,
        "theirs": sample.median.theirs,
        "ratio": sample.ratio(),
        "spread": sample.spread,
        "samples": sample.pairs,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::compare::measures::find;
    use crate::compare::options::CompareOptions;
    use crate::compare::sample::Pair;
    use crate::compare::session::Tally;

    #[test]
    fn each_row_is_an_object_by_its_name() {
        let mut tally = Tally::default();
        for theirs in [5.0, 10.0, 4.0] {
            tally.add("write_1500", "there", Ok(Pair::new(20.0, theirs)));
            tally.add("write_1500", "back", Ok(Pair::new(30.0, theirs)));
        }
        tally.note("write_1500", "kernel", "plain");
        let rows = [tally.row(find("write_1500").unwrap()).unwrap()];
        let missing = [("send", "no peer".to_owned())];
        let options = CompareOptions::parse_from(["compare", "--quick"]);
        let session = Session::new(options).unwrap();
        let document = document(&MachineInfo::here(), &session, &rows, &missing, json!({ "memcpy": 1 }));
        let row = &document["write_1500"];
        assert_eq!((&row["ours"], &row["theirs"]), (&json!(20.0), &json!(5.0)));
        assert_eq!((&row["ratio"], &row["unit"]), (&json!(4.0), &json!("Gb/s")));
        assert_eq!((&row["spread"], &row["reached"]), (&json!([2.0, 5.0]), &json!("aim")));
        assert_eq!((&row["direction"], &row["kernel"]), (&json!("there"), &json!("plain")));
        assert_eq!(row["directions"]["back"]["ratio"], 6.0);
        assert_eq!(row["samples"].as_array().map(Vec::len), Some(3));
        assert_eq!(document["not_measured"]["send"], "no peer");
        assert_eq!((&document["wire"]["memcpy"], &document["quick"]), (&json!(1), &json!(true)));
        assert_eq!(document["runs"], json!({ "runs": 0, "disturbed": 0, "counted": 0 }));
    }
}
