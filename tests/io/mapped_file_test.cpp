#include "io/mapped_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>

#include "io_test_util.hpp"

namespace batten::io {
namespace {

using namespace testing;

TEST(MappedFile, HasTheFilesBytes) {
  const TempDir dir;
  std::mt19937_64 random(1);
  for (const std::size_t size : {std::size_t{1}, std::size_t{4096}, std::size_t{100'001}}) {
    const std::string contents = to_text(random_bytes(size, random));
    write_file(dir / "file", contents);
    const MappedFile file(dir / "file");
    EXPECT_EQ(to_text(file.bytes()), contents);
  }
}

TEST(MappedFile, MovingKeepsTheAddress) {
  const TempDir dir;
  write_file(dir / "a", "first");
  write_file(dir / "b", "second");
  MappedFile a(dir / "a");
  const std::byte* const address = a.bytes().data();
  MappedFile moved(std::move(a));
  EXPECT_EQ(moved.bytes().data(), address);
  MappedFile b(dir / "b");
  b = std::move(moved);
  EXPECT_EQ(b.bytes().data(), address);
  EXPECT_EQ(to_text(b.bytes()), "first");
}

TEST(MappedFile, OutlivesReplacementAndRemovalOfTheFile) {
  const TempDir dir;
  write_file(dir / "old", "old contents");
  write_file(dir / "new", "new");
  const MappedFile file(dir / "old");
  std::filesystem::rename(dir / "new", dir / "old");
  std::filesystem::remove(dir / "old");
  EXPECT_EQ(to_text(file.bytes()), "old contents");
}

TEST(MappedFile, RefusesWhatCannotBeMapped) {
  const TempDir dir;
  write_file(dir / "empty", "");
  write_file(dir / "file", "x");
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  std::filesystem::create_symlink("nowhere", dir / "dangling");
  std::filesystem::create_symlink("loop", dir / "loop");

  const struct {
    std::filesystem::path path;
    const char* fragment;
  } cases[] = {
      {dir / "missing", "No such file or directory; check the path"},
      {dir / "dangling", "No such file or directory; check the path"},
      {dir / "file/below", "Not a directory; check the path"},
      {dir / "loop", "Too many levels of symbolic links"},
      {dir / std::string(300, 'n'), "File name too long"},
      {"", "cannot read '': No such file or directory"},
      {dir.path(), "it is a directory"},
      {dir / "empty", "the file is empty"},
      {dir / "fifo", "device, pipe or socket"},
      {"/dev/null", "device, pipe or socket"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.path);
    EXPECT_IO_ERROR(MappedFile(c.path), c.fragment);
    EXPECT_IO_ERROR(MappedFile(c.path), "'" + c.path.string() + "'");
  }
}

TEST(MappedFile, ShowsAStrangeNameOnOneLine) {
  EXPECT_IO_ERROR(MappedFile("/nowhere/a\nb"), "'/nowhere/a\\x0ab'");
}

TEST(MappedFileDeathTest, UnreadableFile) {
  const TempDir dir;
  write_file(dir / "secret", "x");
  std::filesystem::permissions(dir.path(), std::filesystem::perms(0755));
  std::filesystem::permissions(dir / "secret", std::filesystem::perms::none);
  const auto open_without_rights = [&] {
    drop_root();
    try {
      const MappedFile file(dir / "secret");
    } catch (const Error& error) {
      std::fputs(error.what(), stderr);
      ::_exit(1);
    }
    ::_exit(0);
  };
  EXPECT_EXIT(open_without_rights(), ::testing::ExitedWithCode(1),
              "cannot read '.*secret': Permission denied; check its permissions");
}

}  // namespace
}  // namespace batten::io
