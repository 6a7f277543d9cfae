// Package schema validates events by docs/schema/event.json, and reports of sweeps by
// docs/schema/sweep.json.
package schema

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// File returns the path of the schema of the event.
func File() string { return schemas() + "/event.json" }

// SweepFile returns the path of the schema of the report of a sweep.
func SweepFile() string { return schemas() + "/sweep.json" }

// schemas returns the directory of the schemas.
var schemas = sync.OnceValue(func() string {
	dir, _ := os.Getwd()
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if path := filepath.Join(dir, "docs/schema"); exists(path) {
			return path
		}
	}
	return "docs/schema"
})

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

var (
	event = sync.OnceValues(func() (*jsonschema.Schema, error) { return compile(File()) })
	sweep = sync.OnceValues(func() (*jsonschema.Schema, error) { return compile(SweepFile()) })
)

func compile(file string) (*jsonschema.Schema, error) {
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	return c.Compile(file)
}

// Check returns an error if the data are not one event.
func Check(data []byte) error { return check(event, data) }

// CheckSweep returns an error if the data are not one report of a sweep.
func CheckSweep(data []byte) error { return check(sweep, data) }

func check(compiled func() (*jsonschema.Schema, error), data []byte) error {
	s, err := compiled()
	if err != nil {
		return err
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err == nil {
		err = s.Validate(v)
	}
	if err != nil {
		return fmt.Errorf("%w\n%.2000s", err, data)
	}
	return nil
}
