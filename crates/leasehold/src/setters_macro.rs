//! The macro that writes the methods of builders that set one field.

/// Writes methods that set the field of their name and return the builder: `=>` leads to the field's new value.
///
/// `must_use` has a reason, since some builders are marked themselves.
macro_rules! setters {
    ($($(#[$attribute:meta])* pub fn $field:ident(mut self, $value:ident: $type:ty) -> Self => $set:expr;)*) => {
        $(
            $(#[$attribute])*
            #[must_use = "it is returned, not changed in place"]
            pub fn $field(mut self, $value: $type) -> Self {
                self.$field = $set;
                self
            }
        )*
    };
    ($($(#[$attribute:meta])* pub const fn $field:ident(mut self, $value:ident: $type:ty) -> Self => $set:expr;)*) => {
        $(
            $(#[$attribute])*
            #[must_use = "it is returned, not changed in place"]
            pub const fn $field(mut self, $value: $type) -> Self {
                self.$field = $set;
                self
            }
        )*
    };
}
pub(crate) use setters;
