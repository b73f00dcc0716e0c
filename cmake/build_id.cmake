# Writes OUTPUT: the build id of kiln, from VERSION and the contents of FILES (comma separated, relative to ROOT).
string(REPLACE "," ";" files "${FILES}")
set(text "${VERSION}\n${COMPILER}\n")
foreach(file ${files})
  file(SHA256 ${ROOT}/${file} digest)
  string(APPEND text "${file} ${digest}\n")
endforeach()
string(SHA256 digest "${text}")
string(SUBSTRING ${digest} 0 16 digest)
file(WRITE ${OUTPUT} "// Made by cmake/build_id.cmake: equal in libraries that may exchange C++ objects.
#pragma once

namespace kiln {
inline constexpr const char* kBuildId = \"${VERSION}-${digest}\";
}  // namespace kiln
")
