package schema

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// object is an object of a schema.
type object struct {
	Required   []string `json:"required"`
	Properties map[string]struct {
		Ref         string `json:"$ref"`
		Description string `json:"description"`
	} `json:"properties"`
	Defs map[string]object `json:"$defs"`
}

// HasFields tests that the objects of a schema have the fields of types of Go, with descriptions, and no
// others. A field that can be missing must not be required. The name of the root is "".
func HasFields(t *testing.T, file string, types map[string]any) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var root object
	if err := json.Unmarshal(data, &root); err != nil {
		t.Fatal(err)
	}
	for name, value := range types {
		o := root.Defs[name]
		if name == "" {
			o = root
		}
		var fields, required []string
		for _, field := range reflect.VisibleFields(reflect.TypeOf(value)) {
			if field.Anonymous || field.Tag.Get("json") == "-" {
				continue
			}
			key, option, _ := strings.Cut(field.Tag.Get("json"), ",")
			fields = append(fields, key)
			if option == "" {
				required = append(required, key)
			}
			if p := o.Properties[key]; p.Description == "" && p.Ref == "" {
				t.Errorf("%q: the schema does not describe %s", name, key)
			}
		}
		if len(o.Properties) != len(fields) {
			t.Errorf("%q: the schema has %d fields, the type %d: %v", name, len(o.Properties), len(fields), fields)
		}
		if diff := cmp.Diff(required, o.Required); diff != "" {
			t.Errorf("%q: required (-type +schema)\n%s", name, diff)
		}
	}
}
