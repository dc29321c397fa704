//! Sets of counters. For a struct of counters, a macro generates the sum of two sets and the list of all
//! counters.

/// A counter in the form in which a monitoring system shows counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The metric's name: the prefix of the counter's set, the name of the field, and the suffix
    /// (`uwarp_tcp_tx_retransmits_total`).
    pub name: &'static str,
    /// The name of the struct that has the counter (`StackCounters`).
    pub set: &'static str,
    /// The name of the field.
    pub field: &'static str,
    /// The documentation of the field, unchanged from the source.
    doc: &'static str,
    /// The value of the counter.
    pub value: u64,
    /// `true` for a counter that only grows, and `false` for a gauge.
    pub is_total: bool,
}

impl Metric {
    /// Makes a metric for a field of a struct that the macro [`counters`](crate::counters!) defines.
    #[doc(hidden)]
    pub fn new([set, field, name, doc]: [&'static str; 4], value: u64) -> Self {
        Self { name, set, field, doc, value, is_total: name.ends_with("_total") }
    }

    /// The description of the metric, as one line of plain text.
    pub fn help(&self) -> String {
        let mut text = String::new();
        let mut rest = self.doc.trim();
        // `[text](target)` and `[text]` become `text`.
        while let Some((before, after)) = rest.split_once('[') {
            let (label, after) = after.split_once(']').unwrap_or((after, ""));
            text.extend([before, label]);
            rest = match after.strip_prefix('(').and_then(|target| target.split_once(')')) {
                Some((_, after)) => after,
                None => after,
            };
        }
        text.push_str(rest);
        text.replace('`', "")
    }
}

/// A field of a set of counters: a number, or a nested set.
#[doc(hidden)]
pub trait Field {
    /// Calls `each` for the number, or for each number of the nested set. For a number, `words` is the first
    /// argument of [`Metric::new`]. A nested set ignores `words`.
    fn list(&self, words: [&'static str; 4], each: &mut dyn FnMut(Metric));
}

impl Field for u64 {
    fn list(&self, words: [&'static str; 4], each: &mut dyn FnMut(Metric)) {
        each(Metric::new(words, *self));
    }
}

/// Defines a struct of counters. The macro also generates the sum of two sets
/// ([`AddAssign`](std::ops::AddAssign), [`Sum`](std::iter::Sum)) and the list of the fields (`for_each`). The
/// two strings are the prefix and the suffix of the field names in [`Metric::name`].
#[doc(hidden)]
#[macro_export]
macro_rules! counters {
    (
        $prefix:literal, $suffix:literal;
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[doc = $doc:literal])* pub $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[doc = $doc])* pub $field: $type,)*
        }

        impl $name {
            /// Calls `each` with each counter.
            pub fn for_each(&self, each: &mut dyn FnMut($crate::counters::Metric)) {
                $($crate::counters::Field::list(
                    &self.$field,
                    [
                        stringify!($name),
                        stringify!($field),
                        concat!($prefix, stringify!($field), $suffix),
                        concat!($($doc),*),
                    ],
                    each,
                );)*
            }
        }

        impl $crate::counters::Field for $name {
            fn list(&self, _: [&'static str; 4], each: &mut dyn FnMut($crate::counters::Metric)) {
                self.for_each(each);
            }
        }

        /// Adds the counters of the other set to the counters of this set.
        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, more: Self) {
                $(self.$field += more.$field;)*
            }
        }

        impl std::iter::Sum for $name {
            fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
                all.fold(Self::default(), |mut sum, more| {
                    sum += more;
                    sum
                })
            }
        }
    };
}

#[cfg(test)]
#[allow(unreachable_pub, reason = "the macro makes public structs")]
mod tests {
    counters! {
        "it_", "";
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Gauges {
            /// Bytes that are held
            /// now.
            pub bytes: u64,
        }
    }

    counters! {
        "it_", "_total";
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            /// Frames of [`Port`](crate::Port), and [others](x).
            pub frames: u64,
            /// The gauges.
            pub gauges: Gauges,
        }
    }

    #[test]
    fn a_counter_is_summed_and_listed_by_its_field() {
        let one = Counts { frames: 2, gauges: Gauges { bytes: 3 } };
        let sum: Counts = [one, one, one].into_iter().sum();
        assert_eq!(sum, Counts { frames: 6, gauges: Gauges { bytes: 9 } });
        let mut listed = Vec::new();
        sum.for_each(&mut |metric| listed.push((metric.name, metric.value, metric.is_total, metric.help())));
        let frames = ("it_frames_total", 6, true, "Frames of Port, and others.".to_owned());
        assert_eq!(listed, [frames, ("it_bytes", 9, false, "Bytes that are held now.".to_owned())]);
    }
}
