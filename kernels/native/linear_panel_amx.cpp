// A panel with AMX: while one tile is multiplied, the rows of the tile before are rounded and
// written, which is work for other parts of the core and took a third of the time beside it.
// Invariant: the tiles and their order are those of `multiply_amx`, and so are the bits.
#include "linear_panel.h"

#if defined(__AMX_BF16__) && defined(__linux__)
#include "amx_tiles.h"

namespace {

constexpr int ROWS = MAX_TILE_ROWS, ROWS_A_STEP = 2;

struct Sums {
  alignas(64) float left[ROWS][LANES];
  alignas(64) float right[ROWS][LANES];
};

// What of a tile is still to be written.
class Writing {
 public:
  explicit Writing(const PanelWriter &writer) : writer_(writer) {}

  void begin(int first_row, const Sums &sums) {
    first_row_ = first_row;
    sums_ = &sums;
    num_written_ = 0;
  }

  void go_on(int num_rows) {
    for (; num_rows > 0 && num_written_ < ROWS; num_rows--, num_written_++)
      writer_.write(first_row_ + num_written_, sums_->left[num_written_],
                    sums_->right[num_written_]);
  }

 private:
  const PanelWriter &writer_;
  const Sums *sums_ = nullptr;
  int first_row_ = 0, num_written_ = ROWS;
};

// Fetches the weights of the next panel into the second cache, some lines at each step of this one.
class Fetching {
 public:
  explicit Fetching(const Panel &panel)
      : left_((const char *)panel.next_left), right_((const char *)panel.next_right),
        size_(panel.next_left ? (int64_t)panel.k * LANES * sizeof(bf16) : 0),
        bytes_a_step_(64 * std::max(1, ROWS / 2 / std::max(1, panel.num_rows / ROWS))) {}

  void go_on() {
    for (const int64_t end = std::min(at_ + bytes_a_step_, size_); at_ < end; at_ += 64) {
      _mm_prefetch(left_ + at_, _MM_HINT_T1);
      _mm_prefetch(right_ + at_, _MM_HINT_T1);
    }
  }

 private:
  const char *left_, *right_;
  int64_t size_, bytes_a_step_, at_ = 0;
};

void multiply(const Panel &panel, int row, Sums &sums, Writing &before, Fetching &next) {
  const int64_t k = panel.k, x_stride = k * sizeof(bf16);
  const bf16 *upper = panel.x + row * k, *lower = upper + 16 * k;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t at = 0; at < k; at += K_STEP) {
    _tile_loadd(4, upper + at, x_stride);
    _tile_loadd(6, panel.left + at * LANES, TILE_BYTES_OF_ROW);
    _tile_loadd(7, panel.right + at * LANES, TILE_BYTES_OF_ROW);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, lower + at, x_stride);
    before.go_on(ROWS_A_STEP);
    next.go_on();
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums.left, TILE_BYTES_OF_ROW);
  _tile_stored(1, sums.right, TILE_BYTES_OF_ROW);
  _tile_stored(2, sums.left + 16, TILE_BYTES_OF_ROW);
  _tile_stored(3, sums.right + 16, TILE_BYTES_OF_ROW);
  before.go_on(ROWS);  // where k has few steps
}

}  // namespace

int multiply_panel_amx(const Panel &panel, const PanelWriter &writer) {
  if (multiply_tile != multiply_amx) return 0;
  Sums sums[2];  // by turns
  Writing writing(writer);
  Fetching fetching(panel);
  configure_tiles(16, 16);
  int row = 0;
  for (int turn = 0; row + ROWS <= panel.num_rows; row += ROWS, turn = 1 - turn) {
    multiply(panel, row, sums[turn], writing, fetching);
    writing.begin(row, sums[turn]);
  }
  writing.go_on(ROWS);
  return row;
}

#else

int multiply_panel_amx(const Panel &, const PanelWriter &) { return 0; }

#endif
