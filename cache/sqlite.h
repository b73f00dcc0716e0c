// SQLite with owners: a connection, a statement and a transaction that cannot leak, and errors as
// one exception type. The rest of cache/ uses these; nothing outside cache/ includes this file.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kiln::cache {

class SqliteError : public std::runtime_error {
 public:
  SqliteError(int code, const std::string& sentence) : std::runtime_error(sentence), code_(code) {}

  int code() const { return code_ & 0xff; }
  bool is_corruption() const { return code() == SQLITE_CORRUPT || code() == SQLITE_NOTADB; }
  bool is_unwritable() const {
    const int primary = code();
    return primary == SQLITE_READONLY || primary == SQLITE_CANTOPEN || primary == SQLITE_PERM ||
           primary == SQLITE_FULL || primary == SQLITE_IOERR;
  }
  // Perhaps because there is no shared memory for a write-ahead log: CANTOPEN is also said of a
  // missing "-shm", and of other files.
  bool may_lack_shared_memory() const {
    return code_ == SQLITE_IOERR_SHMMAP || code_ == SQLITE_IOERR_SHMOPEN ||
           code_ == SQLITE_IOERR_SHMSIZE || code_ == SQLITE_IOERR_SHMLOCK ||
           code() == SQLITE_CANTOPEN;
  }
  bool is_busy() const { return code() == SQLITE_BUSY || code() == SQLITE_LOCKED; }

 private:
  int code_;  // extended
};

// A writer holds the lock for milliseconds. Whoever has not got it by then gives up with a warning:
// nobody waits for ever.
inline constexpr int kBusyTimeoutMs = 5000;

struct StatementCloser {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using StatementHandle = std::unique_ptr<sqlite3_stmt, StatementCloser>;

class Database;

// Columns count from 0, parameters in the order of the calls to bind().
class Statement {
 public:
  Statement(Database& database, std::string sql, StatementHandle handle)
      : database_(&database), sql_(std::move(sql)), handle_(std::move(handle)) {}
  Statement(Statement&&) = default;
  Statement& operator=(Statement&&) = delete;
  ~Statement();  // goes back to the connection for the next one who asks for the same SQL

  template <typename... Values>
  Statement& bind(const Values&... values) {
    (bind_next(values), ...);
    return *this;
  }
  Statement& bind_blob(std::string_view bytes);  // the bytes must outlive the statement's run

  bool step();  // true: a row is there
  void run();   // for statements without rows

  bool is_null(int column) const;
  int64_t integer(int column) const;
  double real(int column) const;  // NULL reads as NaN, which SQLite cannot store
  std::string text(int column) const;
  std::string_view bytes(int column) const;  // valid until the next step

 private:
  void bind_next(std::string_view value);
  void bind_next(const std::string& value) { bind_next(std::string_view(value)); }
  void bind_next(const char* value) { bind_next(std::string_view(value)); }
  void bind_next(int64_t value);
  void bind_next(int value) { bind_next(static_cast<int64_t>(value)); }
  void bind_next(double value);
  void check(int code) const;

  Database* database_;
  std::string sql_;
  StatementHandle handle_;
  int next_parameter_ = 1;
};

class Database {
 public:
  // `flags` are SQLITE_OPEN_*; `name` is a path, ":memory:", or a file: URI.
  Database(const std::string& name, int flags);
  Database(Database&&) = delete;
  ~Database();

  Statement prepare(std::string_view sql);
  void execute(const std::string& sql);          // any number of statements, rows ignored
  std::string query_text(std::string_view sql);  // first column of the first row, "" without one
  int64_t query_integer(std::string_view sql);   // likewise, 0 without one
  bool is_read_only() const;
  sqlite3* handle() const { return handle_; }

  // With SQLite's words for the code, which name no SQL: users read them.
  [[noreturn]] void fail(int code) const;

 private:
  friend class Statement;
  sqlite3* handle_ = nullptr;
  std::multimap<std::string, StatementHandle, std::less<>> idle_statements_;
};

// write: takes the write lock at once (BEGIN IMMEDIATE), so that a later statement cannot fail for
// want of it. read: one snapshot for all that is read. Rolls back unless committed.
class Transaction {
 public:
  enum class Kind { write, read };
  explicit Transaction(Database& database, Kind kind = Kind::write);
  Transaction(const Transaction&) = delete;
  ~Transaction();
  void commit();

 private:
  Database& database_;
  bool open_ = true;
};

// file: URI of a path, with the characters escaped that a URI gives a meaning to.
std::string file_uri(std::string_view path, std::string_view query);

}  // namespace kiln::cache
