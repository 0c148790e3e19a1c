package drivertest

// groups are all cases.
var groups = []group{
	{"Exec", true, execCases},
	{"Stdio", true, stdioCases},
	{"Terminal", true, terminalCases},
	{"Signal", true, signalCases},
	{"Environment", true, environmentCases},
	{"User", false, userCases},
	{"Files", true, filesCases},
	{"SCP", true, scpCases},
	{"Forward", true, forwardCases},
	{"Job", false, jobCases},
	{"Tools", true, toolCases},
	{"Recorded", false, recordedCases},
	{"Lifecycle", false, lifecycleCases},
	{"Pause", false, pauseCases},
	{"Isolation", false, isolationCases},
	{"Hardening", false, hardeningCases},
	{"Socket", false, socketCases},
	{"Limits", false, limitCases},
	{"Network", false, networkCases},
}
