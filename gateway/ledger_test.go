package gateway

import (
	"database/sql"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandgate/sandbox"
	"sandgate/store"
)

// The audit never holds anybody up: while nothing can be written, what is too much
// is counted, and once it can be again, the count is a row.
func TestAuditorNeverWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	db, err := store.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	other, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	tx, err := other.Begin() // holds the only place to write
	if err != nil {
		t.Fatal(err)
	}
	a := newAuditor(db, slog.New(slog.DiscardHandler))
	const rows = auditQueue + 3000
	began := time.Now()
	for range rows {
		a.add(store.AuditRow{Kind: auditExec, Outcome: auditOK})
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("%d rows took %v", rows, d)
	}
	if a.lost.Load() == 0 {
		t.Error("nothing is lost, though there is no room")
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := a.written(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.stop()
	if err := a.written(t.Context()); err == nil {
		t.Error("written after its end")
	}
	all, err := db.Audit(t.Context(), store.AuditFilter{}, 2*rows)
	if err != nil {
		t.Fatal(err)
	}
	said, kept := false, 0
	for _, r := range all {
		if r.Kind == auditLost {
			said = strings.HasSuffix(r.Detail, " rows")
		} else {
			kept++
		}
	}
	if !said || kept < auditQueue || kept >= rows {
		t.Errorf("%d of %d rows were kept, and that some are lost is said: %t", kept, rows, said)
	}
	if _, _, err := db.VerifyAudit(t.Context()); err != nil {
		t.Error(err)
	}
}

// Users see what is theirs, and admins what is everybody's.
func TestLedgerOfOthers(t *testing.T) {
	s := newStage(t, nil)
	s.run(s.login("web", s.bob), "echo for bob alone")
	bob, err := s.gate.db.UserByName(t.Context(), "bob")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.gate.db.AddRecording(t.Context(), store.Recording{ID: "bobs", OwnerID: bob.ID, Sandbox: "web.bob", User: "bob", Started: time.Now()}); err != nil {
		t.Fatal(err)
	}
	alice := s.login("gate", s.alice)
	for line, want := range map[string]int{
		"usage": 0, "usage --all": int(denied), "usage --user bob": int(denied), "usage --user alice": 0,
		"quota ls": 0, "quota set sandboxes 1": int(denied), "quota rm sandboxes": int(denied),
		"audit": 0, "audit --user bob": 0, "audit --sandbox web.bob": 0, "audit verify": int(denied),
		"rec ls": 0, "rec ls --all": int(denied), "rec cat bobs": int(notFound), "rec play bobs": int(notFound), "rec rm bobs": int(notFound),
	} {
		out, stderr, code := s.run(alice, line)
		if code != want || strings.Contains(out, "alone") {
			t.Errorf("%s: exit code %d, want %d\n%s%s", line, code, want, out, stderr)
		}
	}
}

// Who has no tokens or no money left begins nothing more with the agent.
func TestQuotaOfTokens(t *testing.T) {
	s := newStage(t, nil)
	alice, err := s.gate.db.UserByName(t.Context(), "alice")
	if err != nil {
		t.Fatal(err)
	}
	gate := s.login("gate", s.alice)
	for _, m := range []sandbox.Measure{sandbox.QuotaTokens, sandbox.QuotaMoney} {
		if err := s.gate.db.SetQuota(t.Context(), store.Quota{Subject: alice.ID, Measure: string(m), Value: 0}); err != nil {
			t.Fatal(err)
		}
		_, stderr, code := s.run(gate, "agent web 'do something'")
		if code != int(quota) || !strings.Contains(stderr, "quota "+string(m)+" is reached") {
			t.Errorf("%s: exit code %d, %s", m, code, stderr)
		}
		if err := s.gate.db.DeleteQuota(t.Context(), alice.ID, string(m)); err != nil {
			t.Fatal(err)
		}
	}
	if _, stderr, code := s.run(gate, "agent web 'do something'"); code == int(quota) {
		t.Errorf("without a quota: %s", stderr)
	}
}
