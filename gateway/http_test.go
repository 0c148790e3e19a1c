package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"sandgate/sandbox"
	"sandgate/store"
)

// ask returns the status and the body of an answer.
func ask(t *testing.T, url string) (int, string) {
	t.Helper()
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(body)
}

// TestMonitor goes through the life of a gateway, from before it is there.
func TestMonitor(t *testing.T) {
	s := newStage(t, nil)
	m := NewMonitor("1.2.3", s.gate.log)
	server := httptest.NewServer(m.handler())
	defer server.Close()
	ready := func(want int, check, says string) {
		t.Helper()
		status, body := ask(t, server.URL+"/readyz")
		var answer struct {
			Ready  bool
			Checks map[string]string
		}
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			t.Fatalf("%v in %q", err, body)
		}
		if status != want || answer.Ready != (want == 200) || answer.Checks[check] != says {
			t.Errorf("%d %s; want %d and %s: %s", status, body, want, check, says)
		}
		if status, _ := ask(t, server.URL+"/healthz"); status != 200 {
			t.Errorf("/healthz: %d", status)
		}
	}
	ready(503, "serving", "starting")
	if status, body := ask(t, server.URL+"/metrics"); status != 200 || !strings.Contains(body, `version="1.2.3"`) {
		t.Errorf("%d %s", status, body)
	}
	m.Watch(s.gate)
	if _, err := s.dial("web", ssh.PublicKeys(s.alice)); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if status, _ := ask(t, server.URL+"/readyz"); status == 200 {
			break
		}
	}
	ready(200, "driver", "ok")
	status, body := ask(t, server.URL+"/metrics")
	for _, want := range []string{
		`sandgate_logins_total{outcome="ok"} 1`, `sandgate_connections{login="done"} 1`, "sandgate_connections_total 1",
		`sandgate_store_seconds_bucket{operation="read",le="`, "go_goroutines ", "sandgate_agent_steps_total 0",
	} {
		if status != 200 || !strings.Contains(body, want) {
			t.Errorf("%d: no %q in\n%s", status, want, body)
		}
	}
	if status, _ := ask(t, server.URL+"/"); status != 404 {
		t.Errorf("/: %d", status)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	ready(503, "serving", "draining")
	s.gate.db.Close()
	ready(503, "database", "does not answer")
}

// TestMetricsOfUsers shows that nothing that users choose becomes a label: what
// another user does under other names makes no series that was not there.
func TestMetricsOfUsers(t *testing.T) {
	s := newStage(t, nil)
	m := NewMonitor("test", s.gate.log)
	m.Watch(s.gate)
	series := func() map[string]bool {
		families, err := m.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		all := make(map[string]bool)
		for _, f := range families {
			for _, metric := range f.GetMetric() {
				name := f.GetName()
				for _, l := range metric.GetLabel() {
					if !slices.Contains([]string{"direction", "driver", "go_version", "kind", "login", "operation", "outcome", "quota", "state", "version"}, l.GetName()) {
						t.Errorf("%s has a label %s", f.GetName(), l.GetName())
					}
					name += fmt.Sprintf(" %s=%q", l.GetName(), l.GetValue())
				}
				all[name] = true
			}
		}
		return all
	}
	hostile := func(key ssh.Signer, evil string) {
		s.dial(evil+`"}{`, ssh.PublicKeys(newSigner(t))) // a key of nobody's
		for _, login := range []string{evil, "gate", evil + "\n"} {
			c, err := s.dial(login, ssh.PublicKeys(key))
			if err != nil {
				t.Fatal(err)
			}
			for _, command := range []string{"new " + evil, "new --image " + evil + " x" + evil, "new --driver " + evil + " y" + evil, evil, "ls " + evil} {
				if session, err := c.NewSession(); err == nil {
					session.Setenv("LC_"+strings.ToUpper(evil), evil)
					session.Run(command)
					session.Close()
				}
			}
			if session, err := c.NewSession(); err == nil {
				session.RequestSubsystem(evil)
				session.Close()
			}
			if conn, err := c.Dial("tcp", evil+":80"); err == nil {
				conn.Close()
			}
			if ch, _, err := c.OpenChannel(evil, nil); err == nil {
				ch.Close()
			}
			c.Close()
		}
		s.gate.counters.problem(&sandbox.QuotaError{Standing: sandbox.Standing{Measure: sandbox.QuotaRunning}}, &problem{kind: quota})
		s.gate.counters.spent(store.Usage{TokensIn: 1, CostMicros: 1})
	}
	// What channels of the first leave open for a moment is a series with 0 then.
	hostile(s.alice, "evilone")
	first := series()
	for end := time.Now().Add(time.Minute); !first[`sandgate_logins_total outcome="unknown_key"`]; first = series() {
		if time.Now().After(end) { // a connection's end is counted when the gateway sees it
			t.Fatal("the login in vain is not counted")
		}
		time.Sleep(10 * time.Millisecond)
	}
	hostile(s.bob, "eviltwo")
	second := series()
	if !maps.Equal(first, second) {
		for name := range second {
			if !first[name] {
				t.Errorf("new: %s", name)
			}
		}
	}
	for name := range second {
		if strings.Contains(name, "evil") {
			t.Errorf("series %s", name)
		}
	}
	for _, want := range []string{`sandgate_quota_refusals_total quota="running"`, `sandgate_execs_total kind="exec"`,
		`sandgate_sandboxes driver="local" state="running"`, `sandgate_sandbox_start_seconds driver="local" outcome="ok"`} {
		if !second[want] {
			t.Errorf("no %s in %q", want, slices.Sorted(maps.Keys(second)))
		}
	}
}
