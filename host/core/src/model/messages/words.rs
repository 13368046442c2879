//! Declares the stable words in answers: codes, reasons, phases. Each has a sentence for people, which the
//! reference shows.

/// A word and its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordMeaning {
    pub name: &'static str,
    pub about: &'static str,
}

/// The words without their meanings.
pub const fn names_of_words<const N: usize>(words: &[WordMeaning; N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut place = 0;
    while place < N {
        names[place] = words[place].name;
        place += 1;
    }
    names
}

/// Declares words as constants, or as an enum with `as_str`. `ALL` lists them for the reference. The doc
/// comment of a word is its entry there, so a word without one does not compile.
#[macro_export]
macro_rules! words {
    ($($(#[doc = $about:literal])+ $name:ident = $word:literal;)+) => {
        $($(#[doc = $about])+ pub const $name: &str = $word;)+
        pub const ALL: [$crate::words::WordMeaning; [$($word),+].len()] =
            [$($crate::words::WordMeaning { name: $word, about: concat!($($about),+) }),+];
    };
    ($(#[$meta:meta])* pub enum $enum:ident {
        $($(#[doc = $about:literal])+ $variant:ident = $word:literal,)+
    }) => {
        $(#[$meta])*
        pub enum $enum { $($(#[doc = $about])+ $variant,)+ }

        impl $enum {
            #[cfg(test)]
            pub const ALL: &[$crate::words::WordMeaning] =
                &[$($crate::words::WordMeaning { name: $word, about: concat!($($about),+) }),+];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_word_s_entry_is_its_doc_comment() {
        crate::words! {
            /// The first.
            FIRST = "first";
            /// The second,
            /// in two lines.
            SECOND = "second";
        }
        assert_eq!((FIRST, SECOND), ("first", "second"));
        assert_eq!(super::names_of_words(&ALL), ["first", "second"]);
        assert_eq!(ALL[1].about, " The second, in two lines.");
    }
}
