package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// A Service is a command that is kept running in a sandbox.
type Service struct {
	Name    string // unique in the sandbox
	Command string
	Dir     string
	Env     []string // NAME=VALUE
	Health  []byte   // how to find out whether it is well, as the gateway has it; empty: it is not looked at
	Created time.Time
}

// AddService adds a service to a sandbox, as its last. ErrExists if it has one of that
// name, ErrNotFound if there is no such sandbox.
func (db *DB) AddService(ctx context.Context, sandboxID string, s Service) error {
	env, err := json.Marshal(s.Env)
	if err == nil {
		_, err = db.write.ExecContext(ctx, "INSERT INTO services (sandbox_id, name, command, dir, env, health, created) VALUES (?, ?, ?, ?, ?, ?, ?)",
			sandboxID, s.Name, s.Command, s.Dir, string(env), string(s.Health), toMillis(now()))
	}
	if err != nil {
		return fmt.Errorf("add service %q to sandbox %s: %w", s.Name, sandboxID, meaning(err))
	}
	return nil
}

// DeleteService removes a service. ErrNotFound if the sandbox has none of that name.
func (db *DB) DeleteService(ctx context.Context, sandboxID, name string) error {
	if err := db.update(ctx, "DELETE FROM services WHERE sandbox_id = ? AND name = ?", sandboxID, name); err != nil {
		return fmt.Errorf("delete service %q of sandbox %s: %w", name, sandboxID, err)
	}
	return nil
}

// Services returns the services of a sandbox in the order in which they were added.
func (db *DB) Services(ctx context.Context, sandboxID string) ([]Service, error) {
	rows, err := db.read.QueryContext(ctx, "SELECT name, command, dir, env, health, created FROM services WHERE sandbox_id = ? ORDER BY id", sandboxID)
	if err != nil {
		return nil, fmt.Errorf("services of sandbox %s: %w", sandboxID, err)
	}
	defer rows.Close()
	var all []Service
	for rows.Next() {
		var s Service
		var env string
		if err := rows.Scan(&s.Name, &s.Command, &s.Dir, &env, &s.Health, millis{&s.Created}); err != nil {
			return nil, fmt.Errorf("services of sandbox %s: %w", sandboxID, err)
		}
		if err := json.Unmarshal([]byte(env), &s.Env); err != nil {
			return nil, fmt.Errorf("service %q of sandbox %s: %w", s.Name, sandboxID, err)
		}
		all = append(all, s)
	}
	return all, rows.Err()
}

// Serving returns the sandboxes that are meant to run and have services.
func (db *DB) Serving(ctx context.Context) ([]Sandbox, error) {
	all, err := selectAll(ctx, db, (*Sandbox).columns, selectSandboxes+
		"WHERE s.desired = ? AND EXISTS (SELECT 1 FROM services WHERE services.sandbox_id = s.id) ORDER BY s.last_used DESC", DesiredRunning)
	if err != nil {
		return nil, fmt.Errorf("list sandboxes with services: %w", err)
	}
	return all, nil
}
