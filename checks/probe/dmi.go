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

// DMI is dmidecode's description of the node's hardware.
type DMI struct {
	Lines   []string    // its output without empty lines; one empty line if there is no dmidecode
	Records []DMIRecord // the tables in it, in their order
	Missing error       // why there is no output at all; nil if there is
}

// DMIRecord is one table of the DMI: the lines below a line
//
// Handle 0x1100, DMI type 17, 84 bytes
type DMIRecord struct {
	Handle uint64   // 0x1100
	Type   string   // number of the type as written: 17
	Name   string   // its name: Memory Device
	Data   []string // lines, each with the names of its sections: "Memory Device: Size: 32 GB"
}

// maxDMI bounds the read of dmidecode's output, bytes. Servers with the most memory modules have
// some 200 kB.
const maxDMI = 1 << 20

// ReadDMI runs dmidecode, once for the life of the Host unless it prints nothing, as LBNL NHC does.
// Without dmidecode there are no tables and one empty line, which is not an error. It is an error
// if dmidecode cannot start, or its output is too long.
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
		Uncache(h, "dmi")
	}
	return d, err
}

// Product returns the name of the server's model, which every user can read; "" if it is unknown.
func Product(h *Host) string {
	name, _ := h.ReadValue("/sys/class/dmi/id/product_name")
	return strings.Join(strings.Fields(name), " ")
}

// parseDMI parses the output of dmidecode. As LBNL NHC it ignores the last table, which is the "End
// Of Table" mark.
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

// space has the characters that regular expressions of a shell treat as white space.
const space = " \t\r\v\f"

// maxSections bounds the nesting of sections, and maxSection the length of a section's name, bytes.
// dmidecode writes two levels and short names; without these bounds the work for a hostile text
// would grow quadratically.
const (
	maxSections = 8
	maxSection  = 256
)

// parseHandle parses the first line of a table.
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
