package judge

import (
	"encoding/json"
	"testing"

	_ "github.com/nhc-gpu/nhc-gpu/checks/all"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sessiontest"
)

func TestMain(m *testing.M) { sessiontest.Main(m) }

func marshal(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
