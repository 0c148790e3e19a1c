package store

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

func addAudit(t testing.TB, db *DB, rows ...AuditRow) {
	t.Helper()
	if err := db.AddAudit(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
}

func TestAudit(t *testing.T) {
	db, _ := openTemp(t)
	ctx := t.Context()
	alice, bob := addUser(t, db, "alice"), addUser(t, db, "bob")
	begin := now()
	addAudit(t, db,
		AuditRow{Time: begin, Conn: "C1", Remote: "r", UserID: alice.ID, User: "alice", Kind: "login", Outcome: "ok"},
		AuditRow{Time: begin, Conn: "C1", UserID: alice.ID, User: "alice", OwnerID: alice.ID, Sandbox: "web.alice", Kind: "exec", Outcome: "ok", Detail: "make"})
	addAudit(t, db,
		AuditRow{Time: begin.Add(time.Second), Conn: "C2", UserID: bob.ID, User: "bob", OwnerID: alice.ID, Sandbox: "web.alice", Kind: "exec", Outcome: "ok", Detail: "id"},
		AuditRow{Time: begin.Add(time.Second), Conn: "C2", UserID: bob.ID, User: "bob", Kind: "verb", Outcome: "denied", Detail: "quota set"},
		AuditRow{Time: begin.Add(2 * time.Second), Conn: "C3", User: "mallory", Kind: "login", Outcome: "denied"})
	for _, tt := range []struct {
		f     AuditFilter
		limit int
		want  []int64
	}{
		{AuditFilter{}, 10, []int64{1, 2, 3, 4, 5}},
		{AuditFilter{}, 2, []int64{4, 5}},
		{AuditFilter{After: 3}, 10, []int64{4, 5}},
		{AuditFilter{Of: alice.ID}, 10, []int64{1, 2, 3}},
		{AuditFilter{Of: bob.ID}, 10, []int64{3, 4}},
		{AuditFilter{Of: alice.ID, User: "bob"}, 10, []int64{3}},
		{AuditFilter{Sandbox: "web.alice"}, 10, []int64{2, 3}},
		{AuditFilter{User: "mallory"}, 10, []int64{5}},
		{AuditFilter{Since: begin.Add(time.Second)}, 10, []int64{3, 4, 5}},
		{AuditFilter{Of: bob.ID, After: 3}, 10, []int64{4}},
		{AuditFilter{User: "' OR 1=1 --"}, 10, nil},
	} {
		rows, err := db.Audit(ctx, tt.f, tt.limit)
		if err != nil {
			t.Fatal(err)
		}
		var ids []int64
		for _, r := range rows {
			ids = append(ids, r.ID)
		}
		wantEqual(t, fmt.Sprint(ids), fmt.Sprint(tt.want))
	}
	n, head, err := db.VerifyAudit(ctx)
	if err != nil || n != 5 || len(head) != 64 {
		t.Errorf("verified %d rows up to %q, %v", n, head, err)
	}

	// Somebody else who gets the id of a user who is gone does not get their rows.
	if _, err := db.write.Exec("DELETE FROM users WHERE id = ?", bob.ID); err != nil {
		t.Fatal(err)
	}
	rows, err := db.Audit(ctx, AuditFilter{Of: addUser(t, db, "carol").ID}, 10)
	if err != nil || len(rows) != 0 {
		t.Errorf("carol sees %v, %v", rows, err)
	}
	if _, _, err := db.VerifyAudit(ctx); err != nil {
		t.Error(err)
	}
}

func TestVerifyAudit(t *testing.T) {
	for change, at := range map[string]int64{
		"UPDATE audit SET detail = 'harmless' WHERE id = 5":             5,
		"UPDATE audit SET time = time + 1 WHERE id = 1":                 1,
		"UPDATE audit SET user = 'bob', conn = '' WHERE id = 20":        20,
		"UPDATE audit SET outcome = '', detail = 'okdetail' WHERE id=7": 7, // the same bytes, cut elsewhere
		"DELETE FROM audit WHERE id = 5":                                6,
		"DELETE FROM audit WHERE id = 1":                                2,
		"UPDATE audit SET id = id + 100 WHERE id > 10":                  111,
		"UPDATE audit SET hash = x'00' WHERE id = 12":                   12,
	} {
		db, _ := openTemp(t)
		for i := range 20 {
			addAudit(t, db, AuditRow{Time: now(), User: "alice", Conn: "C", Kind: "exec", Outcome: "ok", Detail: "detail", ID: int64(i * 7)})
		}
		if _, _, err := db.VerifyAudit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := db.write.Exec(change); err != nil {
			t.Fatal(err)
		}
		_, _, err := db.VerifyAudit(t.Context())
		if tampered, ok := errors.AsType[*TamperedError](err); !ok || tampered.ID != at {
			t.Errorf("after %q: %v, want row %d", change, err, at)
		}
	}
}

func TestRecordings(t *testing.T) {
	db, _ := openTemp(t)
	ctx := t.Context()
	alice, bob := addUser(t, db, "alice"), addUser(t, db, "bob")
	begin := now()
	r := Recording{ID: "r1", OwnerID: alice.ID, Sandbox: "web.alice", User: "bob", Conn: "C", Started: begin}
	if err := db.AddRecording(ctx, r); err != nil {
		t.Fatal(err)
	}
	wantErr(t, db.AddRecording(ctx, r), ErrExists)
	if err := db.EndRecording(ctx, "r1", begin.Add(time.Second), 99); err != nil {
		t.Fatal(err)
	}
	r.Ended, r.Size = begin.Add(time.Second), 99
	got, err := db.Recording(ctx, "r1")
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, got, r)
	for id, n := range map[int64]int{alice.ID: 1, bob.ID: 0, 0: 1} {
		all, err := db.Recordings(ctx, id)
		if err != nil || len(all) != n {
			t.Errorf("recordings of %d: %v, %v", id, all, err)
		}
	}
	if err := db.DeleteRecording(ctx, "r1"); err != nil {
		t.Fatal(err)
	}
	wantErr(t, db.DeleteRecording(ctx, "r1"), ErrNotFound)
	wantErr(t, db.EndRecording(ctx, "r1", begin, 0), ErrNotFound)
}
