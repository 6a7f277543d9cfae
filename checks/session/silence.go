package session

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Silence returns findings of a line with each failure that a person has accepted made a warning.
// present are the devices of the node, nil if they are unknown.
func Silence(list []checks.Finding, line string, accepted []checks.Silence, present []checks.Device, now time.Time) []checks.Finding {
	list = slices.Clone(list)
	for i := range list {
		f := &list[i]
		at := slices.IndexFunc(accepted, func(s checks.Silence) bool { return f.Severity == checks.Fail && fits(&s, f, line, present, now) })
		if at < 0 {
			continue
		}
		f.Severity, f.Silenced = checks.Warn, &accepted[at].Silenced
		f.Message = strings.TrimSuffix(f.Message, ".") + "; " + f.Silenced.String()
	}
	return list
}

// fits reports whether a silence covers a failure: the code, the device, which must still be the same
// hardware, and where it matters the value are those that the person accepted.
func fits(s *checks.Silence, f *checks.Finding, line string, present []checks.Device, now time.Time) bool {
	switch {
	case s.Code == "" || s.Code != f.Code || s.Ended(now) || s.Got != "" && s.Got != f.Got:
		return false
	case s.Device != (checks.Device{}):
		return isSame(s.Device, identify(f.Device, present))
	}
	// With privacy no device that is no hardware is known: the silence is for those of the line.
	unnamed := f.Device == (checks.Device{}) || s.Line != "" && !f.Device.IsHardware()
	return unnamed && (s.Line == "" || s.Line == line) && (present == nil || sameSet(s.Devices, ofFamily(f.Code, present)))
}

// isSame reports whether a device is still the hardware that was recorded: nothing that is known of
// both may differ. GPUs, disks and adapters keep their identity if a boot numbers them in another order; other
// names, as of two ports of one adapter, must be the same.
func isSame(was, now checks.Device) bool {
	if was.Kind != now.Kind {
		return false
	}
	known := false
	for _, id := range [][2]string{{was.UUID, now.UUID}, {was.Serial, now.Serial}, {was.PCI, now.PCI}} {
		if id[0] == "" || id[1] == "" {
			continue
		}
		if id[0] != id[1] {
			return false
		}
		known = true
	}
	return known && slices.Contains([]string{"gpu", "nvme", "hca"}, was.Kind) || was.Name == now.Name
}

// identify adds the identity of its board to the device of a finding.
func identify(d checks.Device, present []checks.Device) checks.Device {
	for _, p := range present {
		if d.PCI == "" || p.PCI != d.PCI {
			continue
		}
		if d.UUID == "" {
			d.UUID = p.UUID
		}
		if d.Serial == "" {
			d.Serial = p.Serial
		}
	}
	return d
}

func sameSet(was, now []checks.Device) bool {
	return len(was) == 0 || len(was) == len(now) && !slices.ContainsFunc(was, func(a checks.Device) bool {
		return !slices.ContainsFunc(now, func(b checks.Device) bool { return isSame(a, b) })
	})
}

// families are the kinds of devices that findings without a device count, by the first part of the
// code.
var families = map[string]string{"gpu": "gpu", "ib": "hca", "nvme": "nvme"}

// ofFamily returns the devices that a finding without a device can be about.
func ofFamily(code string, present []checks.Device) (list []checks.Device) {
	first, _, _ := strings.Cut(code, ".")
	for _, d := range present {
		if d.Kind != "" && d.Kind == families[first] {
			list = append(list, d)
		}
	}
	return list
}

// NewSilence returns the silence of a failure in a line. A number that was accepted without an end, or
// that counts devices, must stay the same: a second lost GPU is another fault.
func NewSilence(f checks.Finding, line string, present []checks.Device, by checks.Silenced) checks.Silence {
	s := checks.Silence{Code: f.Code, Device: identify(f.Device, present), Silenced: by}
	if f.Device == (checks.Device{}) {
		if s.Devices = ofFamily(f.Code, present); s.Devices == nil {
			s.Line = line
		}
	}
	if strings.ContainsAny(f.Got, "0123456789") && (by.Until.IsZero() || s.Devices != nil) {
		s.Got = f.Got
	}
	return s
}

// maxSilences bounds the silences of a node.
const maxSilences = 100

// AddSilence returns the silences of a node with one more. It replaces one for the same fault, and
// drops those that have ended.
func AddSilence(list []checks.Silence, s checks.Silence) ([]checks.Silence, error) {
	list = slices.DeleteFunc(slices.Clone(list), func(old checks.Silence) bool {
		return old.Ended(s.Since) || old.Code == s.Code && old.Device == s.Device && old.Line == s.Line
	})
	if len(list) >= maxSilences {
		return nil, fmt.Errorf("this node has %d silenced faults: end one first", len(list))
	}
	return append(list, s), nil
}

// EndSilences divides the silences of a node: those that stay, and those for a code and, if device is
// not empty, a device.
func EndSilences(list []checks.Silence, code, device string) (stay, ended []checks.Silence) {
	for _, s := range list {
		if s.Code == code && (device == "" || Names(s.Device, device)) {
			ended = append(ended, s)
		} else {
			stay = append(stay, s)
		}
	}
	return stay, ended
}

// GoneSilences is EndSilences for a finding that a run no longer has: a silence until the hardware
// changes, or of a number of devices, has ended. line is "" with privacy.
func GoneSilences(list []checks.Silence, code, line string, device checks.Device) (stay, ended []checks.Silence) {
	for _, s := range list {
		ofLine := s.Line == "" || line == "" || s.Line == line
		if s.Code == code && ofLine && (s.Until.IsZero() || s.Devices != nil) && isSame(s.Device, device) {
			ended = append(ended, s)
		} else {
			stay = append(stay, s)
		}
	}
	return stay, ended
}

// Names reports whether a person's word names a device: its name, PCI address, UUID or serial number.
// A PCI address can lack its domain.
func Names(d checks.Device, word string) bool {
	if pci, ok := checks.PCIAddress(word); ok && d.PCI == pci {
		return true
	}
	return slices.ContainsFunc([]string{d.Name, d.PCI, d.UUID, d.Serial}, func(id string) bool { return id != "" && strings.EqualFold(id, word) })
}

// ParseUntil parses the end of a silence: 2026-12-01, which ends at 0:00, RFC 3339, or +30d.
func ParseUntil(text string, now time.Time) (time.Time, error) {
	at, ok := time.Time{}, false
	if after, found := strings.CutPrefix(text, "+"); found {
		if d, valid := checks.ParseTime(after); valid && after != "" {
			at, ok = now.Add(d).Truncate(time.Second), true
		}
	}
	for _, layout := range []string{"2006-01-02", "2006-01-02 15:04", time.RFC3339} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			at, ok = t, true
		}
	}
	switch {
	case !ok:
		return at, errors.New("want a date (2026-12-01), a time (2026-12-01T12:00:00Z) or a duration from now (+30d)")
	case !at.After(now):
		return at, errors.New("this time has passed")
	}
	return at.UTC(), nil
}
