package checks

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

func TestMain(m *testing.M) { runTests(m) }

func TestFamily(t *testing.T) { family(t) }

func TestFamilyAll(t *testing.T) {
	tier.All(t)
	familyAll(t)
}
