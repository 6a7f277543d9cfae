package main

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/conf"
)

// Every figure that a profile may have reaches the checks.
func TestEveryFigureIsKnown(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("[[platform]]\nname = \"all\"\ndevices = [\"abcd\"]\n")
	for i, key := range conf.FigureKeys() {
		fmt.Fprintf(&b, "%s = %d\n", key, i%7+1)
	}
	got := platformsOf("/etc/nhc/profiles.toml", []byte(b.String()))("abcd", "", 1)
	if got == nil || got.Name != "all" || got.File != "/etc/nhc/profiles.toml" {
		t.Fatalf("%+v", got)
	}
	v := reflect.ValueOf(*got)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("%s is not filled", v.Type().Field(i).Name)
		}
	}
	if want := len(conf.FigureKeys()) + 2; v.NumField() != want {
		t.Errorf("%d fields, want %d", v.NumField(), want)
	}
	if p := platformsOf("", nil)("ffff", "", 1); p != nil {
		t.Errorf("%+v", p)
	}
}
