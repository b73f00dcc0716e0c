#include "cache/sqlite.h"

#include <fmt/format.h>

#include <limits>

namespace kiln::cache {
namespace {

// The largest value SQLite may hand out: a damaged length cannot ask for more memory than this.
constexpr int kMaxValueBytes = 512 << 20;

// Statements kept for reuse. The store uses fewer than this.
constexpr size_t kMaxIdleStatements = 96;

}  // namespace

Statement::~Statement() {
  if (!handle_) return;  // moved from
  sqlite3_reset(handle_.get());
  sqlite3_clear_bindings(handle_.get());
  if (database_->idle_statements_.size() >= kMaxIdleStatements) return;
  try {
    database_->idle_statements_.emplace(std::move(sql_), std::move(handle_));
  } catch (...) {
    // Without memory it is prepared anew the next time.
  }
}

void Statement::check(int code) const {
  if (code != SQLITE_OK) database_->fail(code);
}

void Statement::bind_next(std::string_view value) {
  // A null pointer would bind NULL; an empty text is not NULL.
  const char* data = value.data() == nullptr ? "" : value.data();
  check(sqlite3_bind_text64(handle_.get(), next_parameter_++, data, value.size(), SQLITE_TRANSIENT,
                            SQLITE_UTF8));
}

void Statement::bind_next(int64_t value) {
  check(sqlite3_bind_int64(handle_.get(), next_parameter_++, value));
}

void Statement::bind_next(double value) {
  check(sqlite3_bind_double(handle_.get(), next_parameter_++, value));
}

Statement& Statement::bind_blob(std::string_view bytes) {
  const char* data = bytes.data() == nullptr ? "" : bytes.data();
  check(sqlite3_bind_blob64(handle_.get(), next_parameter_++, data, bytes.size(), SQLITE_STATIC));
  return *this;
}

bool Statement::step() {
  const int code = sqlite3_step(handle_.get());
  if (code == SQLITE_ROW) return true;
  if (code != SQLITE_DONE) database_->fail(code);
  return false;
}

void Statement::run() {
  while (step()) {
  }
}

bool Statement::is_null(int column) const {
  return sqlite3_column_type(handle_.get(), column) == SQLITE_NULL;
}

int64_t Statement::integer(int column) const { return sqlite3_column_int64(handle_.get(), column); }

double Statement::real(int column) const {
  if (is_null(column)) return std::numeric_limits<double>::quiet_NaN();
  return sqlite3_column_double(handle_.get(), column);
}

std::string Statement::text(int column) const {
  const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(handle_.get(), column));
  if (data == nullptr) return "";
  return std::string(data, static_cast<size_t>(sqlite3_column_bytes(handle_.get(), column)));
}

std::string_view Statement::bytes(int column) const {
  const auto* data = static_cast<const char*>(sqlite3_column_blob(handle_.get(), column));
  if (data == nullptr) return {};
  return {data, static_cast<size_t>(sqlite3_column_bytes(handle_.get(), column))};
}

Database::Database(const std::string& name, int flags) {
  const int code = sqlite3_open_v2(name.c_str(), &handle_, flags | SQLITE_OPEN_EXRESCODE, nullptr);
  if (code != SQLITE_OK) {
    sqlite3_close_v2(handle_);
    throw SqliteError(code, fmt::format("{} (SQLite {})", sqlite3_errstr(code), code));
  }
  sqlite3_busy_timeout(handle_, kBusyTimeoutMs);
  sqlite3_limit(handle_, SQLITE_LIMIT_LENGTH, kMaxValueBytes);
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_ENABLE_FKEY, 1, nullptr);
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_DQS_DML, 0, nullptr);
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_DQS_DDL, 0, nullptr);
}

Database::~Database() {
  idle_statements_.clear();
  sqlite3_close_v2(handle_);
}

void Database::fail(int code) const {
  throw SqliteError(code, fmt::format("{} (SQLite {})", sqlite3_errstr(code), code));
}

Statement Database::prepare(std::string_view sql) {
  if (auto found = idle_statements_.find(sql); found != idle_statements_.end()) {
    auto node = idle_statements_.extract(found);
    return Statement(*this, std::move(node.key()), std::move(node.mapped()));
  }
  sqlite3_stmt* raw = nullptr;
  const int code = sqlite3_prepare_v3(handle_, sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &raw, nullptr);
  StatementHandle handle(raw);
  if (code != SQLITE_OK) fail(code);
  return Statement(*this, std::string(sql), std::move(handle));
}

void Database::execute(const std::string& sql) {
  const int code = sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) fail(code);
}

std::string Database::query_text(std::string_view sql) {
  Statement statement = prepare(sql);
  return statement.step() ? statement.text(0) : "";
}

int64_t Database::query_integer(std::string_view sql) {
  Statement statement = prepare(sql);
  return statement.step() ? statement.integer(0) : 0;
}

bool Database::is_read_only() const { return sqlite3_db_readonly(handle_, "main") == 1; }

Transaction::Transaction(Database& database, Kind kind) : database_(database) {
  database_.execute(kind == Kind::write ? "BEGIN IMMEDIATE" : "BEGIN");
}

Transaction::~Transaction() {
  // After some errors SQLite has rolled back by itself, and a failed rollback leaves nothing else
  // to do.
  if (open_) sqlite3_exec(database_.handle(), "ROLLBACK", nullptr, nullptr, nullptr);
}

void Transaction::commit() {
  database_.execute("COMMIT");
  open_ = false;
}

std::string file_uri(std::string_view path, std::string_view query) {
  std::string uri = "file:";
  for (const char c : path) {
    if (c == '%' || c == '?' || c == '#') {
      uri += fmt::format("%{:02x}", static_cast<unsigned char>(c));
    } else {
      uri += c;
    }
  }
  return uri + "?" + std::string(query);
}

}  // namespace kiln::cache
