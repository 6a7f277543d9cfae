package probe

import (
	"io/fs"
	"strconv"
	"strings"
)

// LoadAverages returns the first three numbers of /proc/loadavg: the load of the last 1, 5 and 15
// minutes.
func LoadAverages(h *Host) ([3]float64, error) {
	return Once(h, "loadavg", func() ([3]float64, error) {
		const path = "/proc/loadavg"
		text, err := h.ReadValue(path)
		if err != nil {
			return [3]float64{}, err
		}
		loads, ok := parseLoadAverages(text)
		if !ok {
			return loads, &fs.PathError{Op: "parse", Path: path, Err: fs.ErrInvalid}
		}
		return loads, nil
	})
}

// maxLoad is larger than any load: Linux has at most 2^22 threads.
const maxLoad = 1 << 32

func parseLoadAverages(text string) (loads [3]float64, ok bool) {
	f := strings.Fields(text)
	if len(f) < len(loads) {
		return loads, false
	}
	for i := range loads {
		x, err := strconv.ParseFloat(f[i], 64)
		if err != nil || !(x >= 0 && x < maxLoad) {
			return [3]float64{}, false
		}
		loads[i] = x
	}
	return loads, true
}
