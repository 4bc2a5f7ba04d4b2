#include "io/atomic_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "io_test_util.hpp"

namespace batten::io {
namespace {

using namespace testing;
using Names = std::vector<std::string>;

mode_t mode_of(const std::filesystem::path& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_mode & 0777;
}

TEST(AtomicFile, WritesANewFile) {
  const TempDir dir;
  AtomicFile file(dir / "out");
  file.write("some ");
  file.write(as_bytes("bytes"));
  file.write("");
  EXPECT_FALSE(std::filesystem::exists(dir / "out")) << "visible before commit";
  file.commit();
  EXPECT_EQ(read_file(dir / "out"), "some bytes");
  EXPECT_EQ(dir.names(), Names{"out"});
}

TEST(AtomicFile, NewFilesObeyTheUmask) {
  const TempDir dir;
  const mode_t previous = ::umask(027);
  AtomicFile file(dir / "out");
  file.commit();
  ::umask(previous);
  EXPECT_EQ(mode_of(dir / "out"), 0640U);
  EXPECT_EQ(read_file(dir / "out"), "");
}

TEST(AtomicFile, ReplacesAtCommitAndKeepsPermissions) {
  const TempDir dir;
  write_file(dir / "out", "old");
  std::filesystem::permissions(dir / "out", std::filesystem::perms(0604));
  AtomicFile file(dir / "out");
  file.write("new and longer");
  EXPECT_EQ(read_file(dir / "out"), "old");
  file.commit();
  EXPECT_EQ(read_file(dir / "out"), "new and longer");
  EXPECT_EQ(mode_of(dir / "out"), 0604U);
  EXPECT_EQ(dir.names(), Names{"out"});
}

TEST(AtomicFile, WithoutCommitNothingChanges) {
  const TempDir dir;
  write_file(dir / "out", "old");
  {
    AtomicFile file(dir / "out");
    file.write("new");
    EXPECT_EQ(dir.names().size(), 2U);
  }
  EXPECT_EQ(read_file(dir / "out"), "old");
  EXPECT_EQ(dir.names(), Names{"out"});
}

TEST(AtomicFile, TwoWritersDoNotMeet) {
  const TempDir dir;
  AtomicFile first(dir / "out");
  AtomicFile second(dir / "out");
  first.write("first");
  second.write("second");
  second.commit();
  EXPECT_EQ(read_file(dir / "out"), "second");
  first.commit();
  EXPECT_EQ(read_file(dir / "out"), "first");
  EXPECT_EQ(dir.names(), Names{"out"});
}

TEST(AtomicFile, FollowsSymbolicLinks) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "sub");
  write_file(dir / "sub/real", "old");
  std::filesystem::create_symlink("sub/real", dir / "link");
  std::filesystem::create_symlink(dir / "link", dir / "link2");
  std::filesystem::create_symlink("sub/new", dir / "dangling");
  for (const char* name : {"link2", "dangling"}) {
    AtomicFile file(dir / name);
    file.write(name);
    file.commit();
    EXPECT_TRUE(std::filesystem::is_symlink(dir / name));
  }
  EXPECT_EQ(read_file(dir / "sub/real"), "link2");
  EXPECT_EQ(read_file(dir / "sub/new"), "dangling");
  EXPECT_EQ(dir.names(), (Names{"dangling", "link", "link2", "sub"}));
}

TEST(AtomicFile, TakesTheLongestNamesAndRelativePaths) {
  const TempDir dir;
  const std::string longest(255, 'n');
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(dir.path());
  {
    AtomicFile file(longest);
    file.write("x");
    file.commit();
  }
  std::filesystem::current_path(before);
  EXPECT_EQ(dir.names(), Names{longest});
}

TEST(AtomicFile, RefusesBadDestinations) {
  const TempDir dir;
  write_file(dir / "file", "x");
  std::filesystem::create_symlink("loop", dir / "loop");
  const struct {
    std::filesystem::path path;
    const char* fragment;
  } cases[] = {
      {"", "the path is empty"},
      {dir.path(), "it is a directory; give a file name"},
      {dir / "new/", "it is a directory; give a file name"},
      {dir / "missing/out", "No such file or directory; create its directory first"},
      {dir / "file/out", "Not a directory; create its directory first"},
      {dir / "loop", "Too many levels of symbolic links"},
      {dir / std::string(256, 'n'), "File name too long"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.path);
    EXPECT_IO_ERROR(AtomicFile(c.path), c.fragment);
    EXPECT_IO_ERROR(AtomicFile(c.path), "cannot write '" + c.path.string() + "'");
  }
  EXPECT_EQ(dir.names(), (Names{"file", "loop"}));
}

TEST(AtomicFile, AFailedWriteLeavesTheOldFileAndNoTemporary) {
  const TempDir dir;
  write_file(dir / "out", "old");
  AtomicFile file(dir / "out");
  file.write("fits");
  std::string message;
  {
    const FileSizeLimit limit(1000);
    message = error_of([&] { file.write(std::string(5000, 'x')); });
  }
  EXPECT_NE(message.find("/out': File too large; raise the file size limit"), std::string::npos)
      << message;
  EXPECT_EQ(read_file(dir / "out"), "old");
  EXPECT_EQ(dir.names(), Names{"out"}) << "gone at once, not only with the object";

  for (const bool commit : {false, true}) {
    try {
      commit ? file.commit() : file.write("more");
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Internal);
    }
  }
  EXPECT_EQ(read_file(dir / "out"), "old");
}

TEST(AtomicFile, UsingItAfterCommitIsAnError) {
  const TempDir dir;
  AtomicFile file(dir / "out");
  file.commit();
  EXPECT_THROW(file.commit(), Error);
  EXPECT_THROW(file.write("x"), Error);
}

TEST(AtomicFile, AFailedRenameLeavesNoTemporary) {
  const TempDir dir;
  AtomicFile file(dir / "out");
  file.write("x");
  std::filesystem::create_directory(dir / "out");  // appeared since
  EXPECT_IO_ERROR(file.commit(), "it is a directory");
  EXPECT_EQ(dir.names(), Names{"out"});
}

TEST(AtomicFile, WritesPipesDirectly) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  const int fifo = ::open((dir / "fifo").c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(fifo, 0);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  // The second is how `-o /dev/stdout` arrives in a pipeline.
  const std::pair<std::filesystem::path, int> pipes[] = {
      {dir / "fifo", fifo}, {"/dev/fd/" + std::to_string(ends[1]), ends[0]}};
  for (const auto& [path, reader] : pipes) {
    SCOPED_TRACE(path);
    AtomicFile file(path);
    file.write("through a pipe");
    file.commit();
    char buffer[32];
    const ssize_t count = ::read(reader, buffer, sizeof buffer);
    EXPECT_EQ(std::string(buffer, count > 0 ? static_cast<std::size_t>(count) : 0),
              "through a pipe");
  }
  EXPECT_TRUE(std::filesystem::is_fifo(dir / "fifo"));
  EXPECT_EQ(dir.names(), Names{"fifo"});
  for (const int fd : {fifo, ends[0], ends[1]}) ::close(fd);
}

TEST(AtomicFile, AKilledProcessLeavesTheOldFile) {
  const TempDir dir;
  write_file(dir / "out", "old");
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(dir / "out");
    file.write("half of it");
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(read_file(dir / "out"), "old");
  const Names names = dir.names();
  ASSERT_EQ(names.size(), 2U);
  EXPECT_EQ(names[1].rfind("out.tmp-", 0), 0U) << names[1];
}

// Writes one byte to `path` without root's rights; exits 0, or 1 with the error on stderr.
[[noreturn]] void write_unprivileged(const std::filesystem::path& path) {
  drop_root();
  try {
    AtomicFile file(path);
    file.write("x");
    file.commit();
  } catch (const Error& error) {
    std::fputs(error.what(), stderr);
    ::_exit(1);
  }
  ::_exit(0);
}

TEST(AtomicFileDeathTest, WithoutWritePermission) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "open");
  write_file(dir / "open/protected", "x");
  std::filesystem::permissions(dir.path(), std::filesystem::perms(0555));
  std::filesystem::permissions(dir / "open", std::filesystem::perms(0777));
  std::filesystem::permissions(dir / "open/protected", std::filesystem::perms(0444));
  for (const char* name : {"new", "open/protected"}) {
    EXPECT_EXIT(write_unprivileged(dir / name), ::testing::ExitedWithCode(1),
                "cannot write '.*': Permission denied; check the permissions");
  }
  std::filesystem::permissions(dir.path(), std::filesystem::perms(0755));
}

TEST(AtomicFileDeathTest, Devices) {
  EXPECT_EXIT(write_unprivileged("/dev/null"), ::testing::ExitedWithCode(0), "");
  if (!std::filesystem::is_character_file("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  EXPECT_EXIT(write_unprivileged("/dev/full"), ::testing::ExitedWithCode(1),
              "cannot write '/dev/full': No space left on device; free some space");
}

}  // namespace
}  // namespace batten::io
