// Package schema validates events by docs/schema/event.json.
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
var File = sync.OnceValue(func() string {
	dir, _ := os.Getwd()
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if path := filepath.Join(dir, "docs/schema/event.json"); exists(path) {
			return path
		}
	}
	return "docs/schema/event.json"
})

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

var compiled = sync.OnceValues(func() (*jsonschema.Schema, error) {
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	return c.Compile(File())
})

// Check returns an error if the data are not one event.
func Check(data []byte) error {
	s, err := compiled()
	if err != nil {
		return err
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err == nil {
		err = s.Validate(v)
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, data)
	}
	return nil
}
