package probe

import (
	"encoding/json"
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// recordedDisk answers for a node that is a tree of files: its file /diskwrite is an
// object of directories, each with rates or with the kind of its error and its text.
// found is whether there is such a file.
func (h *Host) recordedDisk(dir string) (rates DiskRates, found bool, err error) {
	const path = "/diskwrite"
	data, err := h.readFile(path)
	if err != nil {
		return DiskRates{}, false, nil
	}
	var all map[string]struct {
		DiskRates

		Kind DiskKind `json:"kind"`
		Text string   `json:"text"`
	}
	if err := json.Unmarshal(data, &all); err != nil {
		return DiskRates{}, true, &fs.PathError{Op: "parse", Path: path, Err: err}
	}
	of, ok := all[dir]
	switch {
	case !ok:
		return DiskRates{}, true, &DiskError{Kind: DiskNoDir, Op: "open", Err: unix.ENOENT}
	case of.Kind != "":
		return DiskRates{}, true, &DiskError{Kind: of.Kind, Op: "write at byte 4194304", Err: errors.New(of.Text)}
	}
	return of.DiskRates, true, nil
}
