// {fmt}'s code, compiled once. All that its headers declare as compiled elsewhere is here, also
// what batten does not call: a program that links {fmt} beside the static library then takes one
// copy or the other whole.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

template auto dragonbox::to_decimal(float x) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double x) noexcept -> dragonbox::decimal_fp<double>;

template locale_ref::locale_ref(const std::locale& locale);
template auto locale_ref::get<std::locale>() const -> std::locale;

template auto thousands_sep_impl(locale_ref locale) -> thousands_sep_result<char>;
template auto thousands_sep_impl(locale_ref locale) -> thousands_sep_result<wchar_t>;
template auto decimal_point_impl(locale_ref locale) -> char;
template auto decimal_point_impl(locale_ref locale) -> wchar_t;

template void buffer<char>::append(const char* begin, const char* end);
template void buffer<wchar_t>::append(const wchar_t* begin, const wchar_t* end);
template void vformat_to(buffer<char>& out, string_view format,
                         basic_format_args<format_context> args, locale_ref locale);

}  // namespace detail
FMT_END_NAMESPACE
