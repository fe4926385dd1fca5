//! What the checked texts have in common: they are shown as they are, and go through `String` where they are serialized.

/// Implements `Display`, `Debug` and conversions for a newtype of `Arc<str>` whose `new` checks the text.
macro_rules! text_impls {
    ($text:ident) => {
        impl std::fmt::Display for $text {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::fmt::Debug for $text {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&self.0, f)
            }
        }

        impl TryFrom<String> for $text {
            type Error = $crate::Error;

            fn try_from(value: String) -> $crate::Result<Self> {
                Self::new(value)
            }
        }

        impl From<$text> for String {
            fn from(value: $text) -> Self {
                value.0.as_ref().to_owned()
            }
        }
    };
}
pub(super) use text_impls;
