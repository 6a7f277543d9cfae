package probe

import (
	"encoding/json"
	"errors"
	"io/fs"
)

// recordedDisk answers for a node that is a tree of files: its file /diskwrite is an
// object of directories, each with rates or with the kind of its error and its text.
func (h *Host) recordedDisk(dir string) (DiskRates, error) {
	const path = "/diskwrite"
	data, err := h.readFile(path)
	if err != nil {
		return DiskRates{}, err
	}
	var all map[string]struct {
		DiskRates

		Kind DiskKind `json:"kind"`
		Text string   `json:"text"`
	}
	if err := json.Unmarshal(data, &all); err != nil {
		return DiskRates{}, &fs.PathError{Op: "parse", Path: path, Err: err}
	}
	of, ok := all[dir]
	switch {
	case !ok:
		return DiskRates{}, &DiskError{Kind: DiskNoDir, Op: "open", Err: fs.ErrNotExist}
	case of.Kind != "":
		return DiskRates{}, &DiskError{Kind: of.Kind, Op: "write at byte 4194304", Err: errors.New(of.Text)}
	}
	return of.DiskRates, nil
}
