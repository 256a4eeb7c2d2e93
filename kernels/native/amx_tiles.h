// How AMX's eight tiles are used for a product of up to 32 rows and 32 outputs.
// 0-3: sums of (upper, lower) rows by (left, right) outputs; 4, 5: x; 6, 7: weights.
#pragma once

#if defined(__AMX_BF16__) && defined(__linux__)
#include <immintrin.h>

#include <cstdint>

constexpr int TILE_BYTES_OF_ROW = 64;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_of_row[16] = {};
  uint8_t rows[16] = {};
};

// Each time: torch's own products on this thread leave another configuration.
static inline void configure_tiles(int upper_rows, int lower_rows) {
  TileConfig config;
  const uint8_t rows[8] = {(uint8_t)upper_rows, (uint8_t)upper_rows, (uint8_t)lower_rows,
                           (uint8_t)lower_rows, (uint8_t)upper_rows, (uint8_t)lower_rows, 16, 16};
  for (int i = 0; i < 8; i++) {
    config.rows[i] = rows[i];
    config.bytes_of_row[i] = TILE_BYTES_OF_ROW;
  }
  _tile_loadconfig(&config);
}

#endif
