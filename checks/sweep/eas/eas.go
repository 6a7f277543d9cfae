// Package eas reads service descriptions of EAS, Alibaba Cloud's service for models: which checks of the node and
// the network the service wants.
package eas

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/conf/spell"
)

// File is the "aimaster" section of a service description of EAS: which checks run before a service
// starts, and while it runs.
type File struct {
	Sanity  Check // sanity_check
	Runtime Check // runtime_check
}

// Check is one of its two parts.
type Check struct {
	Benchmarks []string      // micro_benchmarks
	FailAction string        // fail_action; a sweep only reports it
	Timeout    time.Duration // of all checks; 0 is none
}

// C4D is the check item of runtime_check.
const C4D = "c4d"

// Parse reads a service description, or its section "aimaster" alone. items are the names that sanity_check may
// have. Keys that belong to other parts of EAS are ignored. Errors have line and column.
func Parse(data []byte, items []string) (*File, error) {
	var top map[string]json.RawMessage
	if err := json.Unmarshal(data, &top); err != nil {
		return nil, syntaxError(data, err)
	}
	r := reader{data: data, items: items}
	file := &File{}
	section, found := top["aimaster"]
	if !found {
		if top["sanity_check"] == nil && top["runtime_check"] == nil {
			return nil, errors.New(`no section "aimaster" with sanity_check or runtime_check`)
		}
		section = data
	}
	return file, r.read(section, file)
}

// syntaxError adds the position to an error of package json.
func syntaxError(data []byte, err error) error {
	at := int64(len(data))
	if syntax := new(json.SyntaxError); errors.As(err, &syntax) {
		at = syntax.Offset
	} else if kind := new(json.UnmarshalTypeError); errors.As(err, &kind) {
		return fmt.Errorf("%s: want an object, got %s", position(data, int(kind.Offset)), kind.Value)
	} else if errors.Is(err, io.EOF) {
		return errors.New("the file is empty")
	}
	return fmt.Errorf("%s: no valid JSON: %w", position(data, int(max(at-1, 0))), err)
}

// position writes an offset as line and column, from 1.
func position(data []byte, offset int) string {
	before := data[:min(max(offset, 0), len(data))]
	line := bytes.Count(before, []byte("\n")) + 1
	return fmt.Sprintf("line %d, column %d", line, len(before)-bytes.LastIndexByte(before, '\n'))
}

// reader finds the positions of errors.
type reader struct {
	data  []byte
	items []string
}

// find returns the offset of a section in the file. Sections are copies without white space changes,
// so their text is that of the file.
func (r *reader) find(section []byte) int { return max(bytes.Index(r.data, section), 0) }

// errorAt makes an error at a text within a section.
func (r *reader) errorAt(section []byte, text, format string, args ...any) error {
	at := r.find(section) + max(bytes.Index(section, []byte(text)), 0)
	return fmt.Errorf("%s: %s", position(r.data, at), fmt.Sprintf(format, args...))
}

func (r *reader) read(section []byte, file *File) error {
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(section, &parts); err != nil {
		return r.errorAt(section, "", `aimaster: want an object, got %s`, section)
	}
	keys := []string{"runtime_check", "sanity_check"}
	for _, key := range slices.Sorted(maps.Keys(parts)) {
		var err error
		switch key {
		case "sanity_check":
			err = r.readCheck(key, parts[key], &file.Sanity, r.items)
		case "runtime_check":
			err = r.readCheck(key, parts[key], &file.Runtime, []string{C4D})
		default:
			if spell.Nearest(key, keys) != "" { // other keys are those of EAS
				err = r.errorAt(section, strconv.Quote(key), "unknown key %q: want %s", key, spell.OneOf(key, keys))
			}
		}
		if err != nil {
			return err
		}
	}
	if parts["sanity_check"] == nil && parts["runtime_check"] == nil {
		return r.errorAt(section, "", "aimaster: no sanity_check and no runtime_check")
	}
	return nil
}

func (r *reader) readCheck(name string, section []byte, c *Check, known []string) error {
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(section, &parts); err != nil {
		return r.errorAt(section, "", "%s: want an object, got %s", name, section)
	}
	keys := []string{"fail_action", "micro_benchmarks", "timeout"}
	for _, key := range slices.Sorted(maps.Keys(parts)) {
		value := parts[key]
		fail := func(want string) error {
			return r.errorAt(section, strconv.Quote(key), "%s.%s: want %s, got %s", name, key, want, value)
		}
		switch key {
		case "fail_action":
			if json.Unmarshal(value, &c.FailAction) != nil {
				return fail("a string")
			}
		case "timeout":
			var minutes float64
			if json.Unmarshal(value, &minutes) != nil || !(minutes > 0) || minutes > 1e6 {
				return fail("a number of minutes above 0")
			}
			c.Timeout = time.Duration(minutes * float64(time.Minute))
		case "micro_benchmarks":
			var list string
			if json.Unmarshal(value, &list) != nil {
				return fail("a string with names separated by commas")
			}
			if err := r.readNames(name, section, list, c, known); err != nil {
				return err
			}
		default:
			return r.errorAt(section, strconv.Quote(key), "%s: unknown key %q: want %s", name, key, spell.OneOf(key, keys))
		}
	}
	if len(c.Benchmarks) == 0 {
		return r.errorAt(section, "", "%s: no micro_benchmarks: want at least one of %s", name, strings.Join(known, ", "))
	}
	return nil
}

// readNames reads the names of check items. A name that is there twice runs once.
func (r *reader) readNames(check string, section []byte, list string, c *Check, known []string) error {
	start := bytes.Index(section, []byte(list))
	offset := 0
	for word := range strings.SplitSeq(list, ",") {
		at := offset + len(word) - len(strings.TrimLeft(word, " \t"))
		offset += len(word) + 1
		name := strings.TrimSpace(word)
		switch {
		case name == "":
			continue
		case !slices.Contains(known, strings.ToLower(name)):
			return fmt.Errorf("%s: %s: unknown name %q: want %s", position(r.data, r.find(section)+max(start, 0)+at), check, name, spell.OneOf(name, known))
		case !slices.Contains(c.Benchmarks, strings.ToLower(name)):
			c.Benchmarks = append(c.Benchmarks, strings.ToLower(name))
		}
	}
	return nil
}
