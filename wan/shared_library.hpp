// Libraries of others that are loaded at run time, so that a build needs none of them.
#pragma once

#include <string>
#include <vector>

namespace batten::wan {

struct LibrarySearch {
  std::string what;                  // "cuBLASLt", for messages
  std::vector<std::string> names;    // file names, the best first
  std::string variable;              // environment variable with the file or its folder
  std::vector<std::string> folders;  // below the CUDA toolkits and site-packages
  std::string remedy;
};

// Never unloaded.
class SharedLibrary {
 public:
  // Looks where the variable says, then in the loader's path, then in `folders` below the CUDA
  // toolkit and the site-packages of the Pythons in reach. Throws Unavailable.
  explicit SharedLibrary(const LibrarySearch& search);

  // Throws Unavailable if the library lacks it.
  void* symbol(const char* name) const;
  // The function, or null.
  void* find(const char* name) const noexcept;
  const std::string& path() const noexcept { return path_; }

 private:
  bool open(const std::string& file);

  std::string what_;
  void* handle_ = nullptr;
  std::string path_;
  std::string error_;  // of the first file that was there and could not be loaded
};

}  // namespace batten::wan
