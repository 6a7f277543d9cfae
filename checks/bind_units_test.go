package checks

import "testing"

func TestSizesInWords(t *testing.T) {
	t.Parallel()
	for size, want := range map[Size]string{
		0: "0 bytes", 1000: "1000 bytes", 1 << 10: "1 KiB", 1000000: "1000000 bytes", 512 << 20: "512 MiB", 469762304: "448.0 MiB",
		1<<30 + 1: "1.0 GiB", 5 << 29: "2560 MiB", 79 * 1e9: "73.6 GiB", 3 << 40: "3 TiB",
	} {
		if got := size.String(); got != want {
			t.Errorf("%d: %q, want %q", int64(size), got, want)
		}
	}
}
