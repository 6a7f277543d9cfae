package probe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// DMI is what dmidecode tells of the node's hardware.
type DMI struct {
	Lines   []string    // its output without empty lines; one empty line if there is no such program
	Records []DMIRecord // the tables in it, in their order
	Missing error       // why there is no output at all; nil if there is
}

// DMIRecord is one table of the DMI, all that stands below a line
//
//	Handle 0x1100, DMI type 17, 84 bytes
type DMIRecord struct {
	Handle uint64   // 0x1100
	Type   string   // number of the type as written: 17
	Name   string   // its name: Memory Device
	Data   []string // lines, each behind the names of the sections it stands in: "Memory Device: Size: 32 GB"
}

// maxDMI is how much of dmidecode's output is read, in bytes. Servers with the
// most memory modules have some 200 kB.
const maxDMI = 1 << 20

// ReadDMI runs dmidecode, once for the life of the Host unless it prints nothing, as
// in a run of LBNL NHC. Without dmidecode there are no tables, which is not an
// error, and one empty line. One that cannot be started, or has no end, is an error.
func ReadDMI(ctx context.Context, h *Host) (DMI, error) {
	d, err := Once(h, "dmi", func() (DMI, error) {
		x := h.Run(ctx, Command{Argv: []string{"dmidecode"}, Output: maxDMI})
		if x.Truncated {
			return DMI{}, fmt.Errorf("output of dmidecode is longer than %d bytes", maxDMI)
		}
		d := parseDMI(string(x.Output))
		switch {
		case errors.Is(x.Err, fs.ErrNotExist), errors.Is(x.Err, fs.ErrPermission):
			d.Missing, d.Lines = x.Err, []string{""}
		case x.Err != nil: // that says nothing of the hardware
			return DMI{}, x.Err
		case len(d.Lines) == 0:
			d.Missing = fmt.Errorf("dmidecode printed nothing, exit status %d", x.Status)
		}
		return d, nil
	})
	if err == nil && len(d.Lines) == 0 {
		h.forget("dmi")
	}
	return d, err
}

// parseDMI reads the output of dmidecode. What the output says of the last table
// is left out, as in LBNL NHC: that table is the "End Of Table" mark.
func parseDMI(text string) DMI {
	d := DMI{Lines: strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })}
	var now *DMIRecord
	var sections []string
	for _, line := range d.Lines {
		if handle, kind, ok := parseHandle(line); ok {
			d.Records = append(d.Records, DMIRecord{Handle: handle, Type: kind})
			now, sections = &d.Records[len(d.Records)-1], nil
			continue
		}
		if now == nil { // the heading
			continue
		}
		indent := len(line) - len(strings.TrimLeft(line, space))
		name := line[indent:]
		if indent == 0 || name == "" {
			now.Name, name = line, line
		} else {
			sections = sections[:min(indent, len(sections))]
			now.Data = append(now.Data, strings.Join(append(slices.Clip(sections), name), " "))
		}
		if len(sections) < maxSections {
			sections = append(sections, strings.TrimSuffix(name[:min(len(name), maxSection)], ":")+":")
		}
	}
	if now != nil {
		now.Data = nil
	}
	return d
}

// space is what the regular expressions of a shell take for white space.
const space = " \t\r\v\f"

// maxSections is how deep sections may stand in each other, and maxSection how
// long the name of one may be, in bytes. dmidecode writes two levels and short
// names; without bounds a hostile text would grow with its square.
const (
	maxSections = 8
	maxSection  = 256
)

// parseHandle reads the line that a table begins with.
func parseHandle(line string) (handle uint64, kind string, ok bool) {
	rest, ok := strings.CutPrefix(line, "Handle ")
	if !ok {
		return 0, "", false
	}
	word, rest, _ := strings.Cut(rest, ", DMI type ")
	kind, _, ok = strings.Cut(rest, ", ")
	if !ok || kind == "" || strings.Trim(kind, "0123456789") != "" {
		return 0, "", false
	}
	if strings.Trim(word, "0123456789abcdefABCDEFxX") != "" {
		return 0, "", false
	}
	handle, err := strconv.ParseUint(word, 0, 64)
	return handle, kind, err == nil
}
